// Reads a .dhat.json with the code of DHAT's own viewer, and prints what that made of it as JSON: `text`, what its page
// shows, and `points`, the leaves of its tree of calls. node read_dhat.mjs DH_VIEW_JS FILE The viewer's code runs as it
// is, on a document of which it needs little: elements that hold others and texts.
import { readFileSync } from 'node:fs';
import vm from 'node:vm';

const [viewer, file] = process.argv.slice(2);

class Element {
  constructor(tag, text = '') {
    Object.assign(this, { tag, own: text, childNodes: [], selectedIndex: 0 });
  }

  appendChild(child) {
    // the option that is selected is the menu's choice
    child.parentNode = this;
    this.childNodes.push(child);
    if (this.tag === 'select') Object.defineProperty(child, 'selected', { set: () => { this.selectedIndex = this.childNodes.indexOf(child); } });
    return child;
  }

  replaceChild(other, child) {
    other.parentNode = this;
    this.childNodes.splice(this.childNodes.indexOf(child), 1, other);
  }

  cloneNode() {
    return new Element(this.tag);
  }

  get textContent() {
    return this.own + this.childNodes.map(child => child.textContent).join('');
  }

  set textContent(text) {
    this.own = text;
  }
}

const document = { body: new Element('body'), location: { search: '' }, createElement: tag => new Element(tag), createTextNode: text => new Element('', text) };
const context = vm.createContext({ document, window: {}, performance, URLSearchParams, Intl, console });
vm.runInContext(readFileSync(viewer, 'utf8'), context);
context.data = readFileSync(file, 'utf8');
// what `loadFile` does with a file's text
vm.runInContext('onLoad(); gFilename = "x"; gData = JSON.parse(data); buildTree(); displayTree(0, 0, 0);', context);
const points = vm.runInContext(`(() => {
  const points = [];
  const visit = (node, above) => {
    const frames = [...above, ...node._frames.map(frame => gData.ftbl[frame])];
    if (node._kids) for (const kid of node._kids) visit(kid, frames);
    else points.push({ frames, total: [node._totalBlocks, node._totalBytes], max: [node._maxBlocks, node._maxBytes], peak: [node._atTGmaxBlocks, node._atTGmaxBytes], end: [node._atTEndBlocks, node._atTEndBytes] });
  };
  visit(gRoot, []);
  return points;
})()`, context);
console.log(JSON.stringify({ text: document.body.textContent, points }));
