// A row of the flame graph: what is drawn in it, and which pixels that has. Pure.

// How many pixels of the screen so many CSS pixels are.
export function pixelsOf(width) {
  return Math.max(1, Math.round(width * (globalThis.devicePixelRatio || 1)));
}

// What is drawn in a row: the nodes from left to right. `x` and `w` are in CSS pixels; of those of the screen a node
// has `left` up to, not with, `right`. No two nodes have the same ones.
export class Row {
  constructor() {
    this.n = 0;
    this.x = new Float64Array(64);
    this.w = new Float64Array(64);
    this.left = new Int32Array(64);
    this.right = new Int32Array(64);
    this.node = new Int32Array(64);
  }

  add(x, w, left, right, node) {
    if (this.n === this.node.length) this.enlarge();
    this.x[this.n] = x;
    this.w[this.n] = w;
    this.left[this.n] = left;
    this.right[this.n] = right;
    this.node[this.n] = node;
    this.n += 1;
  }

  enlarge() {
    for (const list of ['x', 'w', 'left', 'right', 'node']) {
      const larger = new this[list].constructor(4 * this.n);
      larger.set(this[list]);
      this[list] = larger;
    }
  }

  // The node that has a pixel of the screen; -1 if none has it.
  at(pixel) {
    let [low, high] = [0, this.n - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.left[middle] <= pixel) low = middle;
      else high = middle - 1;
    }
    return high >= 0 && pixel >= this.left[low] && pixel < this.right[low] ? this.node[low] : -1;
  }
}
