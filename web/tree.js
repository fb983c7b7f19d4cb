// Call trees as flat lists in preorder, and other trees made of them: folded ones, callers, callees. Pure.

// A tree of nodes 0 … n-1, the root first, each before those that it calls. `func` and `frame` say what a node is; `end` is one past the last node below it.
// `map` says for each node of the tree that it was made of which of its own has that node's amounts; -1: none.
class Tree {
  constructor(depth, func, frame, map = null) {
    this.n = depth.length;
    Object.assign(this, { depth, func, frame, map });
    this.parent = new Int32Array(this.n);
    this.end = new Int32Array(this.n);
    const path = [];
    for (let i = 0; i < this.n; i++) {
      while (path.length > depth[i]) this.end[path.pop()] = i;
      this.parent[i] = depth[i] === 0 ? 0 : path[depth[i] - 1];
      path.push(i);
    }
    while (path.length > 0) this.end[path.pop()] = this.n;
    let deepest = 0;
    for (let i = 0; i < this.n; i++) deepest = Math.max(deepest, depth[i]);
    this.deepest = deepest;
  }

  // What each node has with all below it, of what the nodes of the first tree have by themselves.
  totals(own) {
    const sums = new Float64Array(this.n);
    if (this.map === null) sums.set(own);
    else {
      for (let i = 0; i < own.length; i++) {
        if (this.map[i] >= 0) sums[this.map[i]] += own[i];
      }
    }
    for (let i = this.n - 1; i > 0; i--) sums[this.parent[i]] += sums[i];
    return sums;
  }

  // What each node has by itself.
  own(own) {
    if (this.map === null) return own;
    const sums = new Float64Array(this.n);
    for (let i = 0; i < own.length; i++) {
      if (this.map[i] >= 0) sums[this.map[i]] += own[i];
    }
    return sums;
  }

  // The nodes from the root's child to this one.
  path(node) {
    const path = [];
    for (let i = node; i > 0; i = this.parent[i]) path.unshift(i);
    return path;
  }
}

// The tree that the file has. `names` has a function for each frame; the root has none, -1.
export function firstTree(depth, frame, names) {
  const func = new Int32Array(depth.length);
  for (let i = 0; i < func.length; i++) func[i] = i === 0 ? -1 : names[frame[i]];
  return new Tree(depth, func, frame);
}

// A tree that grows from its root. Its nodes are found by a hash table with open addressing: several times as fast as a Map.
class Growing {
  constructor(atMost) {
    const room = Math.max(16, Math.min(atMost, 1 << 16));
    this.n = 1;
    this.parent = new Int32Array(room);
    this.func = new Int32Array(room);
    this.frame = new Uint32Array(room);
    this.func[0] = -1;
    this.slots = new Int32Array(64);
  }

  // The slot where a node is, or belongs. 0 is a free slot: the root is nobody's child.
  slot(parent, func) {
    const mask = this.slots.length - 1;
    let at = Math.imul(Math.imul(parent, 0x9e3779b1) ^ func, 0x85ebca6b);
    at = (at ^ (at >>> 15)) & mask;
    for (;;) {
      const node = this.slots[at];
      if (node === 0 || (this.parent[node] === parent && this.func[node] === func)) return at;
      at = (at + 1) & mask;
    }
  }

  // The node of a function below `parent`.
  child(parent, func, frame) {
    const slot = this.slot(parent, func);
    if (this.slots[slot] > 0) return this.slots[slot];
    if (this.n === this.parent.length) {
      for (const list of ['parent', 'func', 'frame']) {
        const larger = new this[list].constructor(2 * this.n);
        larger.set(this[list]);
        this[list] = larger;
      }
    }
    const node = this.n;
    this.n += 1;
    this.parent[node] = parent;
    this.func[node] = func;
    this.frame[node] = frame;
    this.slots[slot] = node;
    if (2 * this.n > this.slots.length) {
      this.slots = new Int32Array(4 * this.slots.length);
      for (let i = 1; i < this.n; i++) this.slots[this.slot(this.parent[i], this.func[i])] = i;
    }
    return node;
  }

  // The finished tree; `map` in numbers of this one.
  finish(map) {
    const { n } = this;
    const [first, next] = [new Int32Array(n).fill(-1), new Int32Array(n).fill(-1)];
    for (let i = n - 1; i > 0; i--) {
      next[i] = first[this.parent[i]];
      first[this.parent[i]] = i;
    }
    const [depth, func, frame] = [new Uint32Array(n), new Int32Array(n), new Uint32Array(n)];
    const number = new Int32Array(n);
    let [node, level] = [0, 0];
    for (let i = 0; i < n; i++) {
      number[node] = i;
      depth[i] = level;
      func[i] = this.func[node];
      frame[i] = this.frame[node];
      if (first[node] >= 0) {
        node = first[node];
        level += 1;
        continue;
      }
      while (node > 0 && next[node] < 0) {
        node = this.parent[node];
        level -= 1;
      }
      node = next[node];
    }
    for (let i = 0; i < map.length; i++) {
      if (map[i] >= 0) map[i] = number[map[i]];
    }
    return new Tree(depth, func, frame, map);
  }
}

// The same tree without the functions that `hidden` marks, whose amounts their callers get; with `merge`, calls of a function that is already on the way
// are one with that.
export function folded(tree, hidden, merge) {
  const growing = new Growing(tree.n);
  const at = new Int32Array(tree.n);
  for (let i = 1; i < tree.n; i++) {
    const func = tree.func[i];
    const above = at[tree.parent[i]];
    if (hidden !== null && hidden[func]) {
      at[i] = above;
      continue;
    }
    let same = 0;
    if (merge) {
      same = above;
      while (same > 0 && growing.func[same] !== func) same = growing.parent[same];
    }
    at[i] = same > 0 ? same : growing.child(above, func, tree.frame[i]);
  }
  return behind(tree, growing.finish(at));
}

// Of all callers at once, those of sites are followed that have one part in so many of all: what is less is narrower than a hair in the graph, and is counted
// where it was allocated.
const SMALLEST = 20_000;

// Who calls a function, and who calls those: each stack from its innermost call of it outwards. With `func` -1 of all stacks from where they allocate.
export function callers(tree, func, own) {
  const growing = new Growing(tree.n);
  const at = new Int32Array(tree.n).fill(-1);
  const least = func < 0 ? own.reduce((sum, amount) => sum + amount, 0) / SMALLEST : 0;
  for (let i = 1; i < tree.n; i++) {
    const begins = func < 0 ? own[i] > 0 : tree.func[i] === func;
    if (!begins) {
      at[i] = func < 0 ? -1 : at[tree.parent[i]];
      continue;
    }
    let node = 0;
    for (let up = i; up > 0; up = tree.parent[up]) {
      node = growing.child(node, tree.func[up], tree.frame[up]);
      if (func < 0 && own[i] < least) break;
    }
    at[i] = node;
  }
  return behind(tree, growing.finish(at));
}

// Whom a function calls, and whom those call: each stack from its outermost call of it inwards.
export function callees(tree, func) {
  const growing = new Growing(tree.n);
  const at = new Int32Array(tree.n).fill(-1);
  for (let i = 1; i < tree.n; i++) {
    const above = at[tree.parent[i]];
    if (above > 0) at[i] = growing.child(above, tree.func[i], tree.frame[i]);
    else if (tree.func[i] === func) at[i] = growing.child(0, func, tree.frame[i]);
  }
  return behind(tree, growing.finish(at));
}

// `made` of `tree`, with its map from the nodes of the tree that `tree` was made of.
function behind(tree, made) {
  if (tree.map === null) return made;
  const { map } = tree;
  const composed = new Int32Array(map.length);
  for (let i = 0; i < map.length; i++) composed[i] = map[i] < 0 ? -1 : made.map[map[i]];
  made.map = composed;
  return made;
}

// What the topmost nodes below `root` have whose functions are found: each stack counts once.
export function matched(tree, totals, root, found) {
  let sum = 0;
  let nodes = 0;
  for (let i = root; i < tree.end[root];) {
    if (tree.func[i] >= 0 && found[tree.func[i]]) {
      sum += totals[i];
      nodes += totals[i] > 0 ? 1 : 0;
      i = tree.end[i];
    } else i += 1;
  }
  return { sum, nodes };
}
