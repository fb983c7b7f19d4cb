// Opens a .heapsnapshot or .heaptimeline in Chromium's own developer tools, without a window, and prints what its table
// of constructors shows: name, number, each row a line. Of a .heaptimeline also the table of allocations behind a line
// `allocations`, behind `stack` that of the last object, behind `samples` the bytes allocated in each. node
// --experimental-websocket open_heapsnapshot.mjs CHROMIUM FILE
import { readFileSync } from 'node:fs';
import { basename } from 'node:path';
import { Browser, Page } from './browser.mjs';

const [chromium, file] = process.argv.slice(2);
const browser = await Browser.start(chromium);
const { targetId } = await browser.call('Target.createTarget', { url: 'devtools://devtools/bundled/js_app.html' });
const { sessionId } = await browser.call('Target.attachToTarget', { targetId, flatten: true });
const page = new Page(browser, sessionId);
const evaluate = expression => page.evaluate(expression);
const until = (what, expression) => page.until(what, expression);

await until('the page', `document.readyState === 'complete' && location.href.startsWith('devtools:')`);
await until('the panel', `(async () => {
  const profiler = await import('devtools://devtools/bundled/panels/profiler/profiler.js');
  const legacy = await import('devtools://devtools/bundled/ui/legacy/legacy.js');
  await legacy.ViewManager.ViewManager.instance().showView('heap-profiler');
  window.panel = profiler.HeapProfilerPanel.HeapProfilerPanel.instance();
  return true;
})()`);
const isTimeline = file.endsWith('.heaptimeline');
if (isTimeline) {
  await evaluate(`(async () => {
    const profiler = await import('devtools://devtools/bundled/panels/profiler/profiler.js');
    profiler.HeapProfilerPanel.HeapProfilerPanel.instance();
    const common = await import('devtools://devtools/bundled/core/common/common.js');
    common.Settings.Settings.instance().createSetting('record-allocation-stacks', false).set(true);
    return true;
  })()`);
}
const text = JSON.stringify(readFileSync(file, 'utf8'));
await evaluate(`(async () => { await panel.loadFromFile(new File([${text}], ${JSON.stringify(basename(file))})); return true; })()`);
const all = `(() => {
  let rows = [];
  const walk = node => {
    if (node.nodeName === 'TR') { const cells = []; for (const cell of node.children) cells.push(words(cell)); rows.push(cells.join('\\t')); }
    if (node.shadowRoot) walk(node.shadowRoot);
    for (const child of node.childNodes) walk(child);
  };
  const words = node => {
    let said = '';
    const walk = node => { if (node.nodeType === 3) said += node.data; if (node.shadowRoot) walk(node.shadowRoot); for (const child of node.childNodes) walk(child); };
    walk(node);
    return said;
  };
  walk(document.body);
  return rows.filter(row => /%/.test(row)).join('\\n');
})()`;
const click = `(() => {
  const find = node => { if (node.classList?.contains('heap-snapshot-sidebar-tree-item')) return node; for (const child of [...(node.shadowRoot ? [node.shadowRoot] : []), ...node.childNodes]) { const found = find(child); if (found) return found; } return null; };
  const item = find(document.body);
  if (item) item.dispatchEvent(new MouseEvent('mousedown', { bubbles: true, composed: true, button: 0 }));
  return ${all};
})()`;
console.log(await until('rows', click));
if (isTimeline) {
  const select = `(() => {
    const find = node => { if (node.nodeName === 'SELECT' && [...node.options].some(option => option.text === 'Allocation')) return node; for (const child of [...(node.shadowRoot ? [node.shadowRoot] : []), ...node.childNodes]) { const found = find(child); if (found) return found; } return null; };
    const select = find(document.body);
    if (!select) return false;
    select.selectedIndex = [...select.options].findIndex(option => option.text === 'Allocation');
    select.dispatchEvent(new Event('change', { bubbles: true }));
    return true;
  })()`;
  await until('the perspective', select);
  console.log('allocations');
  console.log(await until('allocations', all.replace('/%/', '/^[0-9]+\\t[0-9]+\\t/')));
  const told = await evaluate(`(async () => {
    const header = panel.visibleView.profile ?? panel.visibleView.profileHeader;
    const snapshot = await header.loadPromise;
    const samples = await snapshot.getSamples();
    const stack = await snapshot.allocationStack((snapshot.nodeCount ?? snapshot.staticData.nodeCount) * 7 - 7);
    return 'stack\\n' + stack.map(frame => frame.functionName + '\\t' + frame.scriptName + ':' + frame.line).join('\\n')
      + '\\nsamples\\n' + samples.timestamps.map((time, at) => time + '\\t' + samples.sizes[at]).join('\\n');
  })()`);
  console.log(told);
}
await browser.end();
process.exit(0);
