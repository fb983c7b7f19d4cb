// The flame graph: a canvas over a tree in flat lists. Only what is wide enough and in sight is drawn.
import { baseName, shortName } from './text.js';
import { forgetColors, pixelOf, sharpen, themeColor } from './dom.js';
import { pixelsOf, Row } from './row.js';

const FRAME_HEIGHT = 20;
const FONT = '12px system-ui, sans-serif';

// Narrower than this, in CSS pixels, nothing is drawn, and nothing below it looked at; nor what has no pixel of its
// own.
const NARROWEST = 0.3;

// Names begin where there is room for a few letters.
const LEAST_TEXT = 28;

// So much of the paper shines through callers of what is zoomed to.
const PALE = 0.45;

// So long texts are drawn at once, in milliseconds; the rest follows in the next frames.
const TEXT_SLICE = 5;

// So many shades each way tell by how much of itself something has grown or shrunk.
const LEVELS = 8;

// Modules of which each has a hue of its own, the program's first.
const HUES = [32, 212, 152, 282, 352, 92, 182, 252, 322, 62];

// The colours of modules: light and dark, four shades each, chosen by the function's name.
export class Colors {
  constructor(data) {
    const { strings, report, frames } = data;
    this.data = data;
    const main = report.modules.length > 0 ? report.modules[0].path : '';
    const seen = new Map();
    const counts = new Map();
    for (const module of frames.module) counts.set(module, (counts.get(module) ?? 0) + 1);
    const modules = [...counts.keys()].sort((a, b) => counts.get(b) - counts.get(a) || a - b);
    const first = modules.findIndex(module => strings[module] === main);
    if (first > 0) modules.unshift(...modules.splice(first, 1));
    modules.forEach((module, i) => seen.set(module, strings[module] === '' ? -1 : HUES[i % HUES.length]));
    this.hues = seen;
    this.modules = modules;
    this.shade = new Uint8Array(strings.length);
    for (let i = 0; i < strings.length; i++) {
      let hash = 0;
      const name = strings[i];
      for (let k = 0; k < name.length && k < 40; k++) hash = (hash * 31 + name.charCodeAt(k)) | 0;
      this.shade[i] = (hash >>> 3) & 3;
    }
    this.themed();
  }

  // To be called when light turns to dark.
  themed() {
    forgetColors();
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    this.look = dark ? 'dark' : 'light';
    this.fills = new Map();
    for (const [module, hue] of this.hues) {
      const shades = [0, 1, 2, 3].map(shade => {
        const [saturation, lightness] = dark ? [38, 30 + shade * 2.2] : [62, 72 + shade * 2.6];
        return hue < 0 ? `hsl(220 6% ${lightness}%)` : `hsl(${hue} ${saturation}% ${lightness}%)`;
      });
      this.fills.set(module, shades);
    }
    const paper = themeColor('--paper');
    this.changes = [...Array(2 * LEVELS + 1).keys()].map(i => {
      const share = Math.abs(i - LEVELS) / LEVELS;
      return `hsl(${i > LEVELS ? 4 : 214} ${6 + 66 * share}% ${dark ? 32 + 6 * share : 86 - 16 * share}%)`;
    });
    this.changePixels = this.changes.map(color => [pixelOf(color), pixelOf(color, PALE, paper)]);
    const { module } = this.data.frames;
    // Of each frame and shade, plain and faint.
    const pixels = new Map([...this.fills].map(([key, shades]) => [key, shades.map(shade => [pixelOf(shade), pixelOf(shade, PALE, paper)])]));
    this.plain = new Uint32Array(4 * module.length);
    this.pale = new Uint32Array(4 * module.length);
    for (let i = 0; i < this.plain.length; i++) [this.plain[i], this.pale[i]] = pixels.get(module[i >> 2])[i & 3];
    this.root = pixelOf(themeColor('--root-frame'));
    this.mark = pixelOf(themeColor('--mark'));
    this.faint = pixelOf(themeColor('--faint-frame'));
    this.paper = pixelOf(paper);
  }

  // The colour of a frame, as a number; `isPale` for those that are only on the way.
  of(func, frame, isPale) {
    if (func < 0) return this.root;
    return (isPale ? this.pale : this.plain)[4 * frame + this.shade[func]];
  }

  // That of what had so much and has so much: red if it has grown, blue if it has shrunk.
  ofChange(before, after, isPale) {
    const most = Math.max(before, after);
    const level = most > 0 ? Math.round((after - before) / most * LEVELS) : 0;
    return this.changePixels[level + LEVELS][isPale ? 1 : 0];
  }

  // What has come anew (1), is gone (-1), or is as before (0).
  changeSwatch(way) {
    return this.changes[(way + 1) * LEVELS];
  }

  swatch(module) {
    return this.fills.get(module)[1];
  }

  moduleName(module) {
    return module === 0 ? '[none]' : baseName(this.data.strings[module]);
  }
}

export class Flame {
  // `on` has what is called: zoom(node), focus(node), hover(node, x, y), leave().
  constructor(canvas, scroll, space, data, colors, on) {
    Object.assign(this, { canvas, scroll, space, data, colors, on });
    this.widths = new Float32Array(data.strings.length).fill(-1);
    this.mark = document.getElementById('flame-hover');
    this.tree = null;
    this.focus = 0;
    this.rows = [];
    // Rows that were made. They are used again and again.
    this.made = [];
    this.hovered = -1;
    // Not known, until it is asked for again.
    this.width = 0;
    // So many pixels of the screen has a row. What is shown has the height `height`, of which `room` is in sight and
    // `below` is not.
    [this.pixels, this.height, this.room, this.below] = [1, 0, 0, 0];
    addEventListener('resize', () => { this.width = 0; });
    this.waits = false;
    // Where the scroll is. Asking for it makes the browser lay the page out.
    this.top = 0;
    scroll.addEventListener('scroll', () => {
      this.top = scroll.scrollTop;
      this.hover(-1);
      this.draw();
    });
    addEventListener('scroll', () => this.hover(-1));
    canvas.addEventListener('mousemove', event => {
      const node = this.at(event.offsetX, event.offsetY);
      canvas.style.cursor = node > 0 ? 'pointer' : 'default';
      if (node > 0) on.hover(node, event.clientX, event.clientY);
      else on.leave();
      this.hover(node);
    });
    canvas.addEventListener('mouseleave', () => {
      on.leave();
      this.hover(-1);
    });
    canvas.addEventListener('click', event => {
      const node = this.at(event.offsetX, event.offsetY);
      if (node < 0) return;
      this.focus = node;
      on.zoom(node);
    });
    canvas.addEventListener('keydown', event => this.key(event));
    canvas.addEventListener('focus', () => this.draw());
    canvas.addEventListener('blur', () => this.draw());
  }

  // Shows a tree. `found` marks functions, or is null; `flipped` has callers at the bottom; `change` has what nodes had
  // and have, if colours are to tell that.
  show(tree, totals, zoom, flipped, found, change = null) {
    const moved = this.tree !== tree || this.flipped !== flipped || this.zoom !== zoom;
    if (this.tree !== tree || this.focus >= tree.n) this.focus = zoom;
    this.hover(-1);
    Object.assign(this, { tree, totals, zoom, flipped, found, change });
    this.layOut(moved);
    this.draw();
  }

  // Places and draws other amounts as a gesture does, on a canvas that is not in the page. What a browser has not run
  // before it runs several times slower: a gesture has no time for that. All that is shown stays.
  rehearse(others, canvas) {
    const { tree, totals, zoom, flipped, found, change, texts, context } = this;
    if (tree === null || others.length !== tree.n) return;
    const shown = { tree, totals, zoom, flipped, found, change, canvas: this.canvas };
    Object.assign(this, { ...shown, totals: others, canvas });
    this.place();
    this.draw();
    Object.assign(this, { ...shown, texts, context });
    this.place();
  }

  // Where all is that is wide enough, and the room that all rows need.
  layOut(moved) {
    const { tree, zoom } = this;
    const isAtRoot = this.flipped && this.top >= this.below;
    if (this.width === 0) this.width = this.scroll.clientWidth;
    this.place();
    this.height = this.rows.length * FRAME_HEIGHT + 2;
    const room = Math.round(Math.max(240, Math.min(this.height, innerHeight - 220)));
    const below = Math.max(0, this.height - room);
    if (room !== this.room || below !== this.below) {
      Object.assign(this, { room, below });
      this.scroll.style.height = `${room}px`;
      this.space.style.height = `${below}px`;
      this.top = Math.min(this.top, below);
      // A bar to scroll with takes some of the width.
      const width = this.scroll.clientWidth;
      if (width !== this.width) {
        this.width = width;
        this.place();
      }
    }
    if (moved) this.scrollTo(this.flipped ? below : Math.max(0, (tree.depth[zoom] - 4) * FRAME_HEIGHT));
    else if (isAtRoot) this.scrollTo(below);
  }

  scrollTo(top) {
    const wanted = Math.max(0, Math.min(this.below, top));
    if (wanted === this.top) return;
    this.scroll.scrollTop = wanted;
    this.top = wanted;
  }

  rowAt(depth) {
    const { rows, made } = this;
    while (rows.length <= depth) {
      if (made.length === rows.length) made.push(new Row());
      made[rows.length].n = 0;
      rows.push(made[rows.length]);
    }
    return rows[depth];
  }

  // Says what is drawn where. What would not have a pixel of its own is left out, with all below it.
  place() {
    const { zoom, width, tree: { depth, parent, end, deepest }, totals } = this;
    this.rows = [];
    this.pixels = pixelsOf(width);
    for (let up = zoom; up > 0;) {
      up = parent[up];
      this.rowAt(depth[up]).add(0, width, 0, this.pixels, up);
    }
    this.rowAt(depth[zoom]).add(0, width, 0, this.pixels, zoom);
    this.placeBelow(depth, end, totals, new Float64Array(deepest + 3), new Int32Array(deepest + 3), new Int32Array(deepest + 3).fill(this.pixels));
  }

  // Those that what is zoomed to has below it, each within the pixels of its caller. Of each row is kept where its next
  // node begins, in CSS pixels, how far its pixels are taken, and where those of the caller end.
  placeBelow(depth, end, totals, next, taken, until) {
    const { zoom, width, pixels } = this;
    const scale = totals[zoom] > 0 ? width / totals[zoom] : 0;
    const ratio = pixels / Math.max(1, width);
    const to = end[zoom];
    for (let i = zoom + 1; i < to;) {
      const level = depth[i];
      const w = totals[i] * scale;
      const x = next[level];
      next[level] = x + w;
      const from = taken[level];
      const left = Math.max(from, Math.floor(x * ratio));
      const right = Math.min(until[level], Math.max(left + (from > x * ratio ? 0 : 1), Math.round((x + w) * ratio)));
      if (w < NARROWEST || right <= left) {
        i = end[i];
        continue;
      }
      taken[level] = right;
      next[level + 1] = x;
      taken[level + 1] = Math.max(taken[level + 1], left);
      until[level + 1] = right;
      this.rowAt(level).add(x, w, left, right, i);
      i += 1;
    }
  }

  // Where a row is in the canvas.
  y(depth) {
    return (this.flipped ? Math.max(this.height, this.room) - (depth + 1) * FRAME_HEIGHT : depth * FRAME_HEIGHT) - this.top;
  }

  draw() {
    if (this.tree === null) return;
    const { tree, totals, room, width } = this;
    // the page may have come to another screen
    if (pixelsOf(width) !== this.pixels) this.place();
    const context = sharpen(this.canvas, width, room);
    this.context = context;
    this.paint(context);
    this.texts = this.drawTexts(context);
    this.continueTexts();
    if (document.activeElement === this.canvas) this.outline(this.focus, context);
    if (tree.n === 1 || !(totals[0] > 0)) {
      context.font = FONT;
      context.fillStyle = themeColor('--faint');
      context.fillText('Nothing in this column.', 8, Math.min(room - 12, 2.2 * FRAME_HEIGHT));
    }
  }

  // Fills the frames: a line of pixels for each row, which is then repeated.
  paint(context) {
    const { room, canvas } = this;
    const ratio = canvas.height / Math.max(1, room);
    const isNew = this.picture?.width !== canvas.width || this.picture.height !== canvas.height;
    if (isNew) this.picture = context.createImageData(canvas.width, canvas.height);
    const pixels = new Uint32Array(this.picture.data.buffer);
    pixels.fill(0);
    const line = new Uint32Array(canvas.width);
    for (let depth = 0; depth < this.rows.length; depth++) {
      const y = this.y(depth);
      if (y + FRAME_HEIGHT <= 0 || y >= room) continue;
      line.fill(0);
      this.paintRow(depth, line);
      const from = Math.max(0, Math.round(y * ratio));
      const to = Math.min(canvas.height, Math.round((y + FRAME_HEIGHT - 1) * ratio));
      for (let at = from; at < to; at++) pixels.set(line, at * line.length);
    }
    context.putImageData(this.picture, 0, 0);
  }

  // Fills a line with the colours of a row's nodes.
  paintRow(depth, line) {
    const { tree, zoom, found, change, colors } = this;
    const { n, left, right, node } = this.rows[depth];
    const isPale = depth < tree.depth[zoom];
    for (let k = 0; k < n; k++) {
      const at = node[k];
      const func = tree.func[at];
      const isFound = found !== null && func >= 0 && found[func] === 1;
      let color = isFound ? colors.mark : colors.faint;
      if (func < 0) color = colors.root;
      else if (found === null) color = change === null ? colors.of(func, tree.frame[at], isPale) : colors.ofChange(change.before[at], change.after[at], isPale);
      // wide ones are set apart
      const to = right[k] - left[k] > 2 ? right[k] - 1 : right[k];
      for (let pixel = left[k]; pixel < to; pixel++) line[pixel] = color;
    }
  }

  // The names in frames that have room for them, with pauses.
  *drawTexts(context) {
    const { tree, found, zoom, room } = this;
    const [ink, faint, mark] = [themeColor('--frame-ink'), themeColor('--faint'), themeColor('--mark-ink')];
    context.font = FONT;
    context.textBaseline = 'middle';
    for (let depth = 0; depth < this.rows.length; depth++) {
      const y = this.y(depth);
      if (y + FRAME_HEIGHT <= 0 || y >= room) continue;
      const row = this.rows[depth];
      for (let k = 0; k < row.n; k++) {
        if (row.w[k] < LEAST_TEXT) continue;
        const func = tree.func[row.node[k]];
        const text = this.fitting(context, func, row.w[k] - 8);
        if (text === '') continue;
        const isFound = found !== null && func >= 0 && found[func] === 1;
        context.fillStyle = isFound ? mark : found !== null ? faint : ink;
        context.globalAlpha = depth < tree.depth[zoom] ? 0.8 : 1;
        context.fillText(text, row.x[k] + 4, y + FRAME_HEIGHT / 2);
        yield;
      }
    }
    context.globalAlpha = 1;
  }

  continueTexts() {
    const { texts } = this;
    const until = performance.now() + TEXT_SLICE;
    while (this.texts === texts) {
      if (texts.next().done) return;
      if (performance.now() >= until) {
        requestAnimationFrame(() => this.texts === texts && this.continueTexts());
        return;
      }
    }
  }

  // Where a node is drawn, in the canvas; null if it is not.
  boxOf(node) {
    const row = node >= 0 ? this.rows[this.tree.depth[node]] : undefined;
    if (row === undefined) return null;
    const at = row.node.subarray(0, row.n).indexOf(node);
    if (at < 0) return null;
    const pixel = this.width / this.pixels;
    return { x: row.left[at] * pixel, y: this.y(this.tree.depth[node]), w: Math.max(1, (row.right[at] - row.left[at]) * pixel - 0.6) };
  }

  // A frame around a node; around the nearest one of its callers that is drawn, if it is not.
  outline(node, context) {
    const { parent } = this.tree;
    let box = this.boxOf(node);
    for (let up = node; box === null && up > 0;) {
      up = parent[up];
      box = this.boxOf(up);
    }
    if (box === null) return;
    context.globalAlpha = 1;
    context.strokeStyle = themeColor('--accent');
    context.lineWidth = 2;
    context.strokeRect(box.x + 0.5, box.y + 0.5, Math.max(1, box.w - 0.8), FRAME_HEIGHT - 2);
  }

  // Marks what is below the pointer.
  hover(node) {
    if (this.hovered === node) return;
    this.hovered = node;
    const box = node < 0 ? null : this.boxOf(node);
    this.mark.hidden = box === null;
    if (box === null) return;
    const { left, top } = this.canvas.getBoundingClientRect();
    const y = Math.max(0, box.y);
    const height = Math.min(this.room, box.y + FRAME_HEIGHT - 1) - y;
    Object.assign(this.mark.style, { left: `${left + box.x}px`, top: `${top + y}px`, width: `${box.w}px`, height: `${height}px` });
  }

  nameOf(func) {
    return func < 0 ? 'all' : shortName(this.data.strings[func]);
  }

  // As much of a name as has room.
  fitting(context, func, room) {
    const name = this.nameOf(func);
    let width = func < 0 ? 20 : this.widths[func];
    if (width < 0) {
      width = context.measureText(name).width;
      this.widths[func] = width;
    }
    if (width <= room) return name;
    const letters = Math.floor(name.length * (room - 8) / width);
    return letters < 2 ? '' : `${name.slice(0, letters)}…`;
  }

  // The node at a place of the canvas; -1 if none is there.
  at(x, y) {
    if (this.tree === null || this.waits) return -1;
    const down = y + this.top;
    const depth = Math.floor((this.flipped ? Math.max(this.height, this.room) - down : down) / FRAME_HEIGHT);
    return this.rows[depth]?.at(Math.floor(x * this.pixels / Math.max(1, this.width))) ?? -1;
  }

  // Moves between nodes: to the widest callee, the caller, the next to the left or right.
  key(event) {
    const { tree, totals, focus } = this;
    if (tree === null || this.waits || event.ctrlKey || event.metaKey || event.altKey) return;
    const deeper = this.flipped ? 'ArrowUp' : 'ArrowDown';
    const back = this.flipped ? 'ArrowDown' : 'ArrowUp';
    let next = focus;
    if (event.key === deeper) {
      let most = 0;
      for (let i = focus + 1; i < tree.end[focus]; i = tree.end[i]) {
        if (totals[i] > most) [most, next] = [totals[i], i];
      }
    } else if (event.key === back) next = tree.parent[focus];
    else if (event.key === 'ArrowRight' || event.key === 'ArrowLeft') {
      let before = focus;
      const parent = tree.parent[focus];
      for (let i = parent + 1; focus > 0 && i < tree.end[parent]; i = tree.end[i]) {
        if (totals[i] <= 0) continue;
        if (i > focus && event.key === 'ArrowRight') {
          next = i;
          break;
        }
        if (i < focus) before = i;
      }
      if (event.key === 'ArrowLeft') next = before;
    } else if (event.key === 'Home') next = 0;
    else if (event.key === 'Enter' || event.key === ' ') this.on.zoom(focus);
    else if (event.key === 'Backspace' || event.key === 'Escape') this.on.zoom(tree.parent[this.zoom]);
    else return;
    event.preventDefault();
    if (next === focus) return;
    this.focus = next;
    if (next < this.zoom || next >= tree.end[this.zoom]) this.on.zoom(next);
    this.reveal(next);
    this.on.focus(next);
    this.draw();
  }

  // Scrolls until a node is in sight.
  reveal(node) {
    const y = this.y(this.tree.depth[node]) + this.top;
    if (y < this.top) this.scrollTo(y);
    else if (y + FRAME_HEIGHT > this.top + this.room) this.scrollTo(y + FRAME_HEIGHT - this.room);
  }
}
