// Call trees as flat lists in preorder, and other trees made of them: folded ones, callers, callees. Pure. What may
// take long is a generator (work.js).
import { finished, inParts } from './work.js';

// So many nodes are looked up, or joined, between two pauses.
const PART = 1 << 9;

// A tree of nodes 0 … n-1, the root first, each before those that it calls. `func` and `frame` say what a node is;
// `end` is one past the last node below it. A tree that was made of another one, its `base`, knows by `source` where
// its nodes have their amounts from:
// - `map`: for each node of the base that of this one which has its amount; -1: none;
// - `node`, `leaf`, `outer`: the node `leaf` has what `node` of the base has with all below it, and the leaf of the
//   entry `outer`, if that is not -1, has not;
// - `node`, `leaf` without `outer`: the same of what `node` has by itself.
class Tree {
  constructor({ depth, func, frame, parent, end }, kinds, base = null, source = null) {
    Object.assign(this, { n: depth.length, depth, func, frame, parent, end, kinds, base, source });
    this.sums = new Map();
    this.owns = new Map();
    this.deepest = deepestOf(depth);
  }

  // What each node has with all below it, of what the nodes of the first tree have by themselves. `key` is another one
  // for other amounts.
  totals(first, key = first) {
    return kept(this.sums, key, () => {
      const sums = this.source?.outer ? this.differences(first, key) : new Float64Array(this.own(first, key));
      for (let i = this.n - 1; i > 0; i--) sums[this.parent[i]] += sums[i];
      return sums;
    });
  }

  // What each node has by itself.
  own(first, key = first) {
    if (this.base === null) return first;
    return kept(this.owns, key, () => {
      if (this.source.outer) return this.differences(first, key);
      const sums = new Float64Array(this.n);
      const own = this.base.own(first, key);
      const { map, node, leaf } = this.source;
      if (map) {
        for (let i = 0; i < map.length; i++) {
          if (map[i] >= 0 && own[i] !== 0) sums[map[i]] += own[i];
        }
      } else {
        for (let i = 0; i < node.length; i++) sums[leaf[i]] += own[node[i]];
      }
      return sums;
    });
  }

  differences(first, key) {
    const sums = new Float64Array(this.n);
    const totals = this.base.totals(first, key);
    const { node, leaf, outer } = this.source;
    for (let i = 0; i < node.length; i++) {
      sums[leaf[i]] += totals[node[i]];
      if (outer[i] >= 0) sums[leaf[outer[i]]] -= totals[node[i]];
    }
    return sums;
  }
}

function deepestOf(depths) {
  let deepest = 0;
  for (let i = 0; i < depths.length; i++) {
    if (depths[i] > deepest) deepest = depths[i];
  }
  return deepest;
}

// So many sums are kept of a tree.
const SUMS = 24;

// What was made before, or is made now.
function kept(made, key, create) {
  let value = made.get(key);
  if (value === undefined) {
    value = create();
    if (made.size >= SUMS) made.delete(made.keys().next().value);
    made.set(key, value);
  }
  return value;
}

// One past the last node below each.
function* endsOf(parent) {
  const n = parent.length;
  const end = new Int32Array(n);
  yield* inParts(n, (from, to) => endsPart(parent, end, n - to, n - from));
  end[0] = n;
  return end;
}

function endsPart(parent, end, from, to) {
  for (let i = to - 1; i >= Math.max(1, from); i--) {
    if (end[i] === 0) end[i] = i + 1;
    if (end[parent[i]] < end[i]) end[parent[i]] = end[i];
  }
}

// The tree that the file has. `names` has a function for each frame; the root has none, -1.
export function firstTree(depth, frame, names) {
  const [func, parent, path] = [new Int32Array(depth.length), new Int32Array(depth.length), [0]];
  func[0] = -1;
  let kinds = 0;
  for (let i = 1; i < depth.length; i++) {
    func[i] = names[frame[i]];
    parent[i] = path[depth[i] - 1];
    path[depth[i]] = i;
    if (func[i] >= kinds) kinds = func[i] + 1;
  }
  return new Tree({ depth, func, frame, parent, end: finished(endsOf(parent)) }, kinds);
}

// A tree that grows from its root. Its nodes are found by a hash table with open addressing: several times as fast as a
// Map.
class Growing {
  // Room for so many nodes; more of it is made where they need it.
  constructor(expected) {
    let slots = 64;
    while (slots < 2 * expected) slots *= 2;
    this.n = 1;
    this.parent = new Int32Array(slots / 2);
    this.func = new Int32Array(slots / 2);
    this.frame = new Uint32Array(slots / 2);
    this.func[0] = -1;
    this.slots = new Int32Array(slots);
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
    const node = this.n;
    this.n += 1;
    this.parent[node] = parent;
    this.func[node] = func;
    this.frame[node] = frame;
    this.slots[slot] = node;
    if (2 * this.n >= this.slots.length) this.enlarge();
    return node;
  }

  enlarge() {
    for (const list of ['parent', 'func', 'frame']) {
      const larger = new this[list].constructor(2 * this[list].length);
      larger.set(this[list]);
      this[list] = larger;
    }
    this.slots = new Int32Array(2 * this.slots.length);
    for (let i = 1; i < this.n; i++) this.slots[this.slot(this.parent[i], this.func[i])] = i;
  }

  // The finished tree. `source` names nodes of this one by `map` or `leaf`.
  *finish(base, source) {
    const { n } = this;
    const size = new Int32Array(n).fill(1);
    yield* inParts(n, (from, to) => this.sizesPart(size, n - to, n - from));
    const number = new Int32Array(n);
    const free = new Int32Array(n);
    free[0] = 1;
    yield* inParts(n, (from, to) => this.numbersPart(size, number, free, from, to));
    const lists = { depth: new Uint32Array(n), func: new Int32Array(n), frame: new Uint32Array(n), parent: new Int32Array(n), end: new Int32Array(n) };
    yield* inParts(n, (from, to) => this.listsPart(size, number, lists, from, to));
    const named = source.map ?? source.leaf;
    yield* inParts(named.length, (from, to) => renamePart(named, number, from, to));
    return new Tree(lists, base.kinds, base, source);
  }

  // How many nodes each has below it, and itself: from the last one on.
  sizesPart(size, from, to) {
    const { parent } = this;
    for (let i = to - 1; i >= Math.max(1, from); i--) size[parent[i]] += size[i];
  }

  // Their numbers in preorder. `free` has for each the next number for a child.
  numbersPart(size, number, free, from, to) {
    const { parent } = this;
    for (let i = Math.max(1, from); i < to; i++) {
      const above = parent[i];
      number[i] = free[above];
      free[above] += size[i];
      free[i] = number[i] + 1;
    }
  }

  listsPart(size, number, { depth, func, frame, parent, end }, from, to) {
    for (let i = from; i < to; i++) {
      const [at, above] = [number[i], number[this.parent[i]]];
      depth[at] = i === 0 ? 0 : depth[above] + 1;
      func[at] = this.func[i];
      frame[at] = this.frame[i];
      parent[at] = above;
      end[at] = at + size[i];
    }
  }
}

function renamePart(named, number, from, to) {
  for (let i = from; i < to; i++) {
    if (named[i] >= 0) named[i] = number[named[i]];
  }
}

// A tree in which nodes of one function below one parent become one. Where there is nothing to join a whole part of the
// base is taken over.
class Joining {
  // It has `most` nodes at most.
  constructor(base, hidden, most) {
    Object.assign(this, { base, hidden });
    this.depth = new Uint32Array(most);
    this.func = new Int32Array(most);
    this.frame = new Uint32Array(most);
    this.parent = new Int32Array(most);
    this.map = new Int32Array(base.n).fill(-1);
    // Nodes of the base that become one, as lists.
    this.next = new Int32Array(base.n).fill(-1);
    this.last = new Int32Array(base.kinds);
    this.seen = new Int32Array(base.kinds).fill(-1);
    this.n = 0;
  }

  // How many nodes before each are hidden.
  count() {
    const { base, hidden } = this;
    if (hidden === null) return;
    const before = new Int32Array(base.n + 1);
    for (let i = 1; i < base.n; i++) before[i + 1] = before[i] + hidden[base.func[i]];
    this.before = before;
  }

  isWhole(node) {
    return this.next[node] < 0 && (this.hidden === null || this.before[node] === this.before[this.base.end[node]]);
  }

  // Adds a node to the list of its function's among `groups`, whose parent is to be `parent`.
  group(node, parent, groups) {
    const func = this.base.func[node];
    if (this.seen[func] === parent) this.next[this.last[func]] = node;
    else {
      this.seen[func] = parent;
      groups.push(node);
    }
    this.last[func] = node;
  }

  // Takes over a node with all below it.
  take(from, parent) {
    const { base } = this;
    const [to, shift] = [base.end[from], this.n - from];
    this.func.set(base.func.subarray(from, to), this.n);
    this.frame.set(base.frame.subarray(from, to), this.n);
    const deeper = this.depth[parent] + 1 - base.depth[from];
    for (let i = from; i < to; i++) {
      this.depth[i + shift] = base.depth[i] + deeper;
      this.parent[i + shift] = base.parent[i] + shift;
      this.map[i] = i + shift;
    }
    this.parent[this.n] = parent;
    this.n += to - from;
  }

  // Makes one node of a list of the base's, and gives its children to `waiting`.
  join(head, parent, waiting) {
    const { base, hidden } = this;
    const at = this.n;
    this.n += 1;
    this.func[at] = base.func[head];
    this.frame[at] = base.frame[head];
    this.parent[at] = parent;
    this.depth[at] = at === 0 ? 0 : this.depth[parent] + 1;
    const groups = [];
    for (let node = head; node >= 0; node = this.next[node]) {
      this.map[node] = at;
      for (let child = node + 1; child < base.end[node];) {
        if (hidden !== null && hidden[base.func[child]]) {
          this.map[child] = at;
          child += 1;
        } else {
          this.group(child, at, groups);
          child = base.end[child];
        }
      }
    }
    for (let i = groups.length - 1; i >= 0; i--) waiting.push(groups[i], at);
  }

  // All from these lists on; `waiting` has each with its parent, the first one last.
  *run(waiting) {
    let until = PART;
    while (waiting.length > 0) {
      const [parent, head] = [waiting.pop(), waiting.pop()];
      if (head > 0 && this.isWhole(head)) this.take(head, parent);
      else this.join(head, parent, waiting);
      if (this.n >= until) {
        until = this.n + PART;
        yield;
      }
    }
    yield;
    const [depth, func, frame, parent] = [this.depth, this.func, this.frame, this.parent].map(list => list.subarray(0, this.n));
    const end = yield* endsOf(parent);
    return new Tree({ depth, func, frame, parent, end }, this.base.kinds, this.base, { map: this.map });
  }
}

// The same tree without the functions that `hidden` marks, whose amounts their callers get; with `merge`, calls of a
// function that is already on the way are one with that.
export function* folded(tree, hidden, merge) {
  if (!merge) {
    const joining = new Joining(tree, hidden, tree.n);
    joining.count();
    yield;
    return yield* joining.run([0, 0]);
  }
  const growing = new Growing(tree.n);
  const map = new Int32Array(tree.n);
  yield;
  for (let from = 1; from < tree.n; from += PART) {
    mergePart(tree, hidden, growing, map, from, Math.min(tree.n, from + PART));
    yield;
  }
  return yield* growing.finish(tree, { map });
}

function mergePart(tree, hidden, growing, map, from, to) {
  for (let i = from; i < to; i++) {
    const func = tree.func[i];
    const above = map[tree.parent[i]];
    if (hidden !== null && hidden[func]) {
      map[i] = above;
      continue;
    }
    let same = above;
    while (same > 0 && growing.func[same] !== func) same = growing.parent[same];
    map[i] = same > 0 ? same : growing.child(above, func, tree.frame[i]);
  }
}

// Of all callers at once, those of sites are followed that have one part in so many of all: what is less is narrower
// than a hair in the graph, and is counted where it was allocated.
const SMALLEST = 20_000;

// Who calls a function, and who calls those: each stack from its innermost call of it outwards.
export function* callers(tree, func) {
  const [nodes, outer, open] = [[], [], []];
  for (let i = 1; i < tree.n; i++) {
    if (tree.func[i] !== func) continue;
    while (open.length > 0 && tree.end[nodes[open[open.length - 1]]] <= i) open.pop();
    outer.push(open.length > 0 ? open[open.length - 1] : -1);
    open.push(nodes.length);
    nodes.push(i);
  }
  yield;
  const growing = new Growing(nodes.length);
  const leaf = new Int32Array(nodes.length);
  for (let i = 0; i < nodes.length; i++) {
    leaf[i] = outwards(tree, growing, nodes[i]);
    if (i % 256 === 255) yield;
  }
  return yield* growing.finish(tree, { node: Int32Array.from(nodes), leaf, outer: Int32Array.from(outer) });
}

// The node for the callers of a node of `tree`.
function outwards(tree, growing, from) {
  let at = 0;
  for (let up = from; up > 0; up = tree.parent[up]) at = growing.child(at, tree.func[up], tree.frame[up]);
  return at;
}

// The callers of all that allocate. `own` is what each node has by itself.
export function* allCallers(tree, own) {
  let sum = 0;
  const nodes = [];
  yield* inParts(tree.n, (from, to) => {
    for (let i = Math.max(1, from); i < to; i++) {
      if (own[i] > 0) nodes.push(i);
      sum += own[i];
    }
  });
  const growing = new Growing(tree.n);
  const leaf = new Int32Array(nodes.length);
  for (let i = 0; i < nodes.length; i++) {
    const node = nodes[i];
    leaf[i] = own[node] < sum / SMALLEST ? growing.child(0, tree.func[node], tree.frame[node]) : outwards(tree, growing, node);
    if (i % 256 === 255) yield;
  }
  return yield* growing.finish(tree, { node: Int32Array.from(nodes), leaf });
}

// Whom a function calls, and whom those call: each stack from its outermost call of it inwards.
export function* callees(tree, func) {
  const outermost = [];
  let most = 1;
  for (let i = 1; i < tree.n;) {
    if (tree.func[i] === func) {
      outermost.push(i);
      most += tree.end[i] - i;
      i = tree.end[i];
    } else i += 1;
  }
  const joining = new Joining(tree, null, most);
  yield;
  // The root calls nothing else.
  Object.assign(joining, { n: 1 });
  joining.func[0] = -1;
  const groups = [];
  for (const node of outermost) joining.group(node, 0, groups);
  return yield* joining.run(groups.length > 0 ? [groups[0], 0] : []);
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
