// The flame graph: a canvas over a tree in flat lists. Only what is wide enough and in sight is drawn.
import { baseName, shortName } from './text.js';
import { sharpen, themeColor } from './dom.js';

const FRAME_HEIGHT = 20;
const FONT = '12px system-ui, sans-serif';

// Narrower than this, in CSS pixels, nothing is drawn, and nothing below it looked at.
const NARROWEST = 0.3;

// Names begin where there is room for a few letters.
const LEAST_TEXT = 28;

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
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    this.fills = new Map();
    for (const [module, hue] of this.hues) {
      const shades = [0, 1, 2, 3].map(shade => {
        const [saturation, lightness] = dark ? [38, 30 + shade * 2.2] : [62, 72 + shade * 2.6];
        return hue < 0 ? `hsl(220 6% ${lightness}%)` : `hsl(${hue} ${saturation}% ${lightness}%)`;
      });
      this.fills.set(module, shades);
    }
  }

  of(func, frame) {
    return this.fills.get(this.data.frames.module[frame])[this.shade[func]];
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
    this.tree = null;
    this.focus = 0;
    this.rows = [];
    scroll.addEventListener('scroll', () => this.draw());
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

  // Shows a tree. `found` marks functions, or is null; `flipped` has callers at the bottom.
  show(tree, totals, zoom, flipped, found) {
    const moved = this.tree !== tree || this.flipped !== flipped || this.zoom !== zoom;
    if (this.tree !== tree || this.focus >= tree.n) this.focus = zoom;
    Object.assign(this, { tree, totals, zoom, flipped, found });
    this.layOut(moved);
    this.draw();
  }

  // The room that all rows need, and what of it is in sight.
  layOut(moved) {
    const { tree, zoom, totals } = this;
    let deepest = tree.depth[zoom];
    const width = this.scroll.clientWidth;
    const least = totals[zoom] * NARROWEST / Math.max(1, width);
    for (let i = zoom; i < tree.end[zoom];) {
      if (totals[i] <= least) i = tree.end[i];
      else {
        if (tree.depth[i] > deepest) deepest = tree.depth[i];
        i += 1;
      }
    }
    this.height = (deepest + 1) * FRAME_HEIGHT + 2;
    const room = Math.max(240, Math.min(this.height, innerHeight - 220));
    this.scroll.style.height = `${room}px`;
    this.space.style.height = `${Math.max(0, this.height - room)}px`;
    if (moved) this.scroll.scrollTop = this.flipped ? this.height : Math.max(0, (tree.depth[zoom] - 4) * FRAME_HEIGHT);
  }

  draw() {
    if (this.tree === null) return;
    const { tree, totals, zoom, flipped, found, scroll } = this;
    const [width, room] = [scroll.clientWidth, scroll.clientHeight];
    const context = sharpen(this.canvas, width, room);
    context.font = FONT;
    context.textBaseline = 'middle';
    const top = scroll.scrollTop;
    const ink = themeColor('--frame-ink');
    const style = { ink, faint: themeColor('--faint-frame'), faintInk: themeColor('--faint'), mark: themeColor('--mark'), markInk: themeColor('--mark-ink'), root: themeColor('--root-frame') };
    const y = depth => (flipped ? Math.max(this.height, room) - (depth + 1) * FRAME_HEIGHT : depth * FRAME_HEIGHT) - top;
    this.rows = [];
    const row = depth => (this.rows[depth] ??= { x: [], w: [], node: [] });
    const frame = (i, x, w, above) => {
      const level = y(tree.depth[i]);
      if (w >= 1) {
        const list = row(tree.depth[i]);
        list.x.push(x);
        list.w.push(w);
        list.node.push(i);
      }
      if (level + FRAME_HEIGHT < 0 || level > room) return;
      const func = tree.func[i];
      const isFound = found !== null && func >= 0 && found[func] === 1;
      context.fillStyle = func < 0 ? style.root : isFound ? style.mark : found !== null ? style.faint : this.colors.of(func, tree.frame[i]);
      if (above) context.globalAlpha = 0.55;
      context.fillRect(x, level, w > 2 ? w - 0.6 : w, FRAME_HEIGHT - 1);
      context.globalAlpha = 1;
      if (w < LEAST_TEXT) return;
      context.fillStyle = isFound ? style.markInk : found !== null ? style.faintInk : style.ink;
      const text = this.fitting(context, func, w - 8);
      if (text !== '') context.fillText(text, x + 4, level + FRAME_HEIGHT / 2);
    };
    for (const i of tree.path(zoom).slice(0, -1)) frame(i, 0, width, true);
    if (zoom > 0) frame(0, 0, width, true);
    const scale = totals[zoom] > 0 ? width / totals[zoom] : 0;
    const cursor = new Float64Array(tree.deepest + 3);
    for (let i = zoom; i < tree.end[zoom];) {
      const depth = tree.depth[i];
      const w = i === zoom ? width : totals[i] * scale;
      const x = cursor[depth];
      cursor[depth] += w;
      cursor[depth + 1] = x;
      if (w < NARROWEST) {
        i = tree.end[i];
        continue;
      }
      frame(i, x, w, false);
      const level = y(depth);
      const isOut = flipped ? level < -FRAME_HEIGHT : level > room;
      i = isOut ? tree.end[i] : i + 1;
    }
    this.outline(this.hovered ?? -1, y, context, themeColor('--ink'), 1);
    if (document.activeElement === this.canvas) this.outline(this.focus, y, context, themeColor('--accent'), 2);
    if (tree.n === 1 || !(totals[0] > 0)) {
      context.fillStyle = themeColor('--faint');
      context.fillText('Nothing in this column.', 8, Math.min(room - 12, 2.2 * FRAME_HEIGHT));
    }
  }

  // A frame around a node.
  outline(node, y, context, color, thickness) {
    const list = node >= 0 && this.rows[this.tree.depth[node]];
    const at = list ? list.node.indexOf(node) : -1;
    if (at < 0) return;
    context.strokeStyle = color;
    context.lineWidth = thickness;
    context.strokeRect(list.x[at] + 0.5, y(this.tree.depth[node]) + 0.5, Math.max(1, list.w[at] - 1.4), FRAME_HEIGHT - 2);
  }

  hover(node) {
    if (this.hovered === node) return;
    this.hovered = node;
    this.draw();
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
    if (this.tree === null) return -1;
    const room = this.scroll.clientHeight;
    const down = y + this.scroll.scrollTop;
    const depth = Math.floor((this.flipped ? Math.max(this.height, room) - down : down) / FRAME_HEIGHT);
    const list = this.rows[depth];
    if (!list) return -1;
    let [low, high] = [0, list.x.length - 1];
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (x < list.x[middle]) high = middle - 1;
      else if (x >= list.x[middle] + list.w[middle]) low = middle + 1;
      else return list.node[middle];
    }
    return -1;
  }

  // Moves between nodes: to the widest callee, the caller, the next to the left or right.
  key(event) {
    const { tree, totals, focus } = this;
    if (tree === null || event.ctrlKey || event.metaKey || event.altKey) return;
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
    const depth = this.tree.depth[node];
    const room = this.scroll.clientHeight;
    const y = this.flipped ? Math.max(this.height, room) - (depth + 1) * FRAME_HEIGHT : depth * FRAME_HEIGHT;
    if (y < this.scroll.scrollTop) this.scroll.scrollTop = y;
    else if (y + FRAME_HEIGHT > this.scroll.scrollTop + room) this.scroll.scrollTop = y + FRAME_HEIGHT - room;
  }
}
