// What is shown of the data in a state: trees, sums and rows. Pure. What may take long is a generator (work.js).
import { baseName, matcher, shortName } from './text.js';
import { allCallers, callees, callers, firstTree, folded, matched } from './tree.js';
import { boundsOf, ownIn } from './window.js';
import { fileName, listOf, NAMED, ranksOf, Rows, siteName, sumsBy, tellingNode, withShares } from './sums.js';

// So many trees and sums are kept, for those who go back and forth.
const KEPT = 24;

// More than the number of any line.
const LINES = 2 ** 24;

// So long take pieces of what is made beforehand, in milliseconds, when they run for the first time.
const PIECE = 6;
const LONG_PIECE = 30;

// Keeps what was made last. What makes it is a generator.
class Cache {
  constructor() {
    this.made = new Map();
  }

  *get(key, create) {
    let value = this.made.get(key);
    if (value === undefined) {
      value = yield* create();
      this.made.set(key, value);
      if (this.made.size > KEPT) this.made.delete(this.made.keys().next().value);
    }
    return value;
  }
}

export class Model {
  constructor(data) {
    this.data = data;
    this.kinds = data.strings.length;
    this.first = firstTree(data.nodes.depth, data.nodes.frame, data.frames.name);
    this.owns = new Map();
    this.setWindow({ from: -1, to: -1 });
    this.functions = new Map([...new Set(data.frames.name)].map(func => [data.strings[func], func]));
    this.cache = new Cache();
    this.always = new Map();
    this.leaves = leavesOf(data.sites, this.first.n);
  }

  column(name) {
    return this.data.columns.find(column => column.name === name);
  }

  // The window that the views show: all, or that between the two heaps next to what was chosen.
  setWindow({ from, to }) {
    this.bounds = boundsOf(this.data.heaps, from, to);
    this.windowKey = this.bounds === null ? '' : ` ${this.bounds.begin} ${this.bounds.end}`;
  }

  // The state that changes make of the one that is shown; the views show its window from now on. A node's number means
  // something in its tree only.
  changed(state, changes) {
    const before = this.treeKey(state);
    const made = { ...state, ...changes };
    this.setWindow(made);
    return 'zoom' in changes || this.treeKey(made) === before ? made : { ...made, zoom: 0 };
  }

  // What each node of the first tree has by itself.
  own(name, unit) {
    const key = `${name} ${unit}${this.windowKey}`;
    let own = this.owns.get(key);
    if (own === undefined) {
      own = this.bounds === null ? this.ownAlways(name, unit) : ownIn(this.data.heaps, this.first.n, this.bounds, name, unit) ?? new Float64Array(this.first.n);
      if (this.owns.size > KEPT) this.owns.delete(this.owns.keys().next().value);
      this.owns.set(key, own);
    }
    return own;
  }

  ownAlways(name, unit) {
    const own = new Float64Array(this.first.n);
    const values = name === 'lifetime' ? this.data.lifetimes : this.column(name)?.[unit];
    const { node } = this.data.sites;
    for (let i = 0; values && i < node.length; i++) own[node[i]] += values[i];
    return own;
  }

  // For each string whether it is a function's name that was typed for; null if nothing was.
  *found(typed) {
    const test = matcher(typed);
    if (test === null) return { marks: null, count: 0 };
    return yield* this.cache.get(`found ${typed}`, function* () {
      const marks = new Uint8Array(this.kinds);
      let [count, looked] = [0, 0];
      for (const [name, func] of this.functions) {
        if (test(name) || test(shortName(name))) {
          marks[func] = 1;
          count += 1;
        }
        looked += 1;
        if (looked % 512 === 0) yield;
      }
      return { marks, count };
    }.bind(this));
  }

  // The tree without what is hidden.
  *folded({ hide, merge }) {
    const { marks } = yield* this.found(hide);
    if (marks === null && !merge) return this.first;
    return yield* this.cache.get(`folded ${merge} ${hide}`, () => folded(this.first, marks, merge));
  }

  // What tells the tree that the graph shows from others.
  treeKey({ mode, fn, col, unit, hide, merge }) {
    const below = `${merge}\n${hide}`;
    if (mode !== 'callers' && mode !== 'callees') return below;
    const func = this.functionOf(fn);
    if (func < 0) return mode === 'callees' ? below : `all callers ${col} ${unit}${this.windowKey}\n${below}`;
    return `${mode} ${fn}\n${below}`;
  }

  // That tree.
  *tree(state) {
    const below = yield* this.folded(state);
    const func = this.functionOf(state.fn);
    if (state.mode !== 'callers' && (state.mode !== 'callees' || func < 0)) return below;
    return yield* this.cache.get(this.treeKey(state), () => {
      if (func < 0) return allCallers(below, this.owned(below, state.col, state.unit));
      return state.mode === 'callers' ? callers(below, func) : callees(below, func);
    });
  }

  owned(tree, col, unit) {
    return tree.own(this.own(col, unit), `${col} ${unit}${this.windowKey}`);
  }

  totals(tree, { col }, unit) {
    return tree.totals(this.own(col, unit), `${col} ${unit}${this.windowKey}`);
  }

  // All that the graph shows.
  *graph(state) {
    const tree = yield* this.tree(state);
    yield;
    const sums = {};
    for (const unit of ['bytes', 'blocks']) {
      sums[unit] = this.totals(tree, state, unit);
      yield;
    }
    const totals = sums[state.unit];
    const zoom = state.zoom >= 0 && state.zoom < tree.n ? state.zoom : 0;
    const { marks, count } = yield* this.found(state.q);
    const found = marks === null ? null : { count, sum: matched(tree, totals, zoom, marks).sum };
    return { tree, sums, totals, zoom, marks, found, change: this.change(tree, state.unit) };
  }

  // Of a difference: what the nodes had before and have after; of other pages null.
  change(tree, unit) {
    if (this.data.words.difference === null) return null;
    return { before: this.totals(tree, { col: 'before' }, unit), after: this.totals(tree, { col: 'after' }, unit) };
  }

  // The index of a function's name; -1 if there is none.
  functionOf(name) {
    return this.functions.get(name) ?? -1;
  }

  place(frame) {
    const { frames, strings } = this.data;
    const file = frames.file[frame];
    if (file > 0) return `${strings[file]}${frames.line[frame] > 0 ? `:${frames.line[frame]}` : ''}`;
    const module = frames.module[frame];
    return module > 0 ? `[${baseName(strings[module])}]` : '';
  }

  // Makes beforehand what a key may ask for, a piece at each call; yields how long the next one may take, in
  // milliseconds. `show` is called with each column's amounts.
  *beforehand(show) {
    for (const { name } of this.data.columns) {
      for (const unit of ['bytes', 'blocks']) {
        if (this.bounds === null) {
          const totals = this.totals(this.first, { col: name }, unit);
          yield LONG_PIECE;
          show(totals);
        }
        yield PIECE;
      }
    }
    const ranks = this.ranks('short');
    while (!ranks.next().done) yield PIECE;
  }

  // The order of all strings, as they are or (`short`) as functions' short names.
  *ranks(form) {
    let ranks = this.always.get(form);
    if (ranks === undefined) {
      const texts = [];
      for (const string of this.data.strings) {
        texts.push(form === 'short' ? shortName(string) : string);
        if (texts.length % 256 === 0) yield;
      }
      ranks = yield* ranksOf(texts);
      this.always.set(form, ranks);
    }
    return ranks;
  }

  // The table: its rows, and which of them are shown in which order.
  *table(state, column) {
    const rows = yield* this.rows(state);
    yield;
    const order = yield* rows.order(column, state.down);
    const test = matcher(state.q);
    if (test === null) return { rows, order, isFound: false };
    const { marks } = yield* this.found(state.q);
    const isFunctions = rows.funcs !== undefined;
    const isFound = row => (isFunctions ? rows.funcs(row).some(func => marks[func] === 1) : test(rows.name(row)));
    const kept = [];
    for (let i = 0; i < order.length; i++) {
      if (isFound(order[i])) kept.push(order[i]);
      if (i % 4096 === 4095) yield;
    }
    return { rows, order: kept, isFound: true };
  }

  *rows(state) {
    const { by, col, unit, merge, hide } = state;
    const whole = by === 'site' || by === 'thread' || by === 'type' ? '' : `${merge} ${hide}`;
    return yield* this.cache.get(`rows ${by} ${col} ${unit}${this.windowKey} ${whole}`, () => {
      if (by === 'thread') return this.threadRows(state);
      if (by === 'type') return this.typeRows(state);
      return by === 'site' ? this.siteRows(state) : this.groupRows(state);
    });
  }

  // What the columns of the table add up.
  *amounts(tree, { col, unit }) {
    const wanted = this.data.words.difference !== null
      ? { self: [col, unit], before: ['before', unit], after: ['after', unit] }
      : { self: [col, unit], blocks: [col, 'blocks'], allocations: ['allocated', 'blocks'], allocatedBytes: ['allocated', 'bytes'], temporaries: ['temporary', 'blocks'] };
    if (this.data.lifetimes !== null) Object.assign(wanted, { freed: ['freed', 'blocks'], lifetimes: ['lifetime', 'us'] });
    const amounts = {};
    for (const [name, pair] of Object.entries(wanted)) {
      amounts[name] = this.owned(tree, ...pair);
      yield;
    }
    return amounts;
  }

  *groupRows(state) {
    const { frames, strings } = this.data;
    const tree = yield* this.folded(state);
    const own = yield* this.amounts(tree, state);
    const totals = { total: this.totals(tree, state, state.unit), ...this.change(tree, state.unit) };
    yield;
    if (state.by === 'function') {
      const { group, values } = yield* sumsBy(tree, tree.func, listOf(Uint32Array, this.kinds, i => i), this.kinds, own, totals);
      const frameOf = new Uint32Array(this.kinds);
      for (let i = tree.n - 1; i > 0; i--) frameOf[tree.func[i]] = tree.frame[i];
      const frame = row => frameOf[group[row]];
      const rows = new Rows(values, {
        name: row => shortName(strings[group[row]]), whole: row => strings[group[row]], place: row => fileName(strings, frames.file[frame(row)], frames.module[frame(row)]),
      }, column => this.ranksOfRows(column, values.self.length, row => [group[row]], frame, false));
      rows.funcs = row => [group[row]];
      return rows;
    }
    const { groupOf, titles } = state.by === 'module' ? modulesOf(frames, strings) : filesOf(frames, strings);
    const { group, values } = yield* sumsBy(tree, tree.frame, groupOf, titles.length, own, totals);
    const name = row => titles[group[row]];
    return new Rows(values, { name }, function* () {
      return [yield* ranksOf(Array.from(group, index => titles[index]))];
    });
  }

  // The keys for the order of rows of functions or sites; the last one counts most.
  *ranksOfRows(column, count, funcs, frame, hasMany, type) {
    const keys = [];
    if (column === '' && hasMany) return keys;
    if (column === 'type') return [yield* ranksOf(listOf(Array, count, type))];
    if (column === 'place') {
      const ranks = yield* this.ranks('whole');
      const { file, module, line } = this.data.frames;
      keys.push(listOf(Float64Array, count, row => {
        const at = frame(row);
        return (file[at] > 0 ? ranks[file[at]] : ranks.length + ranks[module[at]]) * LINES + (hasMany ? line[at] : 0);
      }));
      return keys;
    }
    const ranks = yield* this.ranks('short');
    for (let level = hasMany ? NAMED - 1 : 0; level >= 0; level--) {
      const key = new Uint32Array(count);
      for (let row = 0; row < count; row++) {
        const func = funcs(row)[level];
        key[row] = func > 0 ? ranks[func] + 1 : 0;
        if (row % 4096 === 4095) yield;
      }
      keys.push(key);
    }
    return keys;
  }

  *siteRows(state) {
    const { first, leaves, data: { strings } } = this;
    const own = yield* this.amounts(first, state);
    const used = [];
    for (let i = 0; i < leaves.nodes.length; i++) {
      if (own.self[leaves.nodes[i]] > 0) used.push(i);
    }
    yield;
    const nodes = listOf(Uint32Array, used.length, row => leaves.nodes[used[row]]);
    yield;
    const values = {};
    for (const [name, amounts] of Object.entries(own)) {
      values[name] = amountsOf(amounts, nodes);
      yield;
    }
    values.total = values.self;
    const telling = row => tellingNode(first, nodes[row], leaves.telling[used[row]]);
    const frame = row => first.frame[telling(row)];
    const ranks = yield* this.ranks('short');
    const named = new Int32Array(NAMED * used.length);
    for (let row = 0; row < used.length; row++) {
      for (let at = telling(row), count = 0, last = -1; at > 0 && count < NAMED; at = first.parent[at]) {
        const func = first.func[at];
        if (ranks[func] !== last) {
          named[NAMED * row + count] = func;
          count += 1;
        }
        last = ranks[func];
      }
      if (row % 4096 === 4095) yield;
    }
    const type = row => strings[leaves.types[used[row]]];
    const funcs = row => named.subarray(NAMED * row, NAMED * row + NAMED);
    const rows = new Rows(yield* withShares(values), {
      name: row => siteName(first, strings, nodes[row], leaves.telling[used[row]]), place: row => this.place(frame(row)), node: row => nodes[row], type,
    }, column => this.ranksOfRows(column, used.length, funcs, frame, true, type));
    rows.funcs = funcs;
    return rows;
  }

  *typeRows(state) {
    const { first, leaves, data: { strings } } = this;
    const own = yield* this.amounts(first, state);
    const { groupOf, titles } = grouped(leaves.types, leaves.types, at => strings[leaves.types[at]] || '[unknown]');
    const sums = Object.fromEntries(Object.keys(own).map(name => [name, new Float64Array(titles.length)]));
    for (const [name, amounts] of Object.entries(own)) {
      for (let i = 0; i < groupOf.length; i++) sums[name][groupOf[i]] += amounts[leaves.nodes[i]];
      yield;
    }
    const used = [...titles.keys()].filter(type => sums.self[type] > 0);
    const values = Object.fromEntries(Object.entries(sums).map(([name, list]) => [name, Float64Array.from(used, type => list[type])]));
    const names = used.map(type => titles[type]);
    return new Rows(yield* withShares({ ...values, total: values.self }), { name: row => names[row] }, function* () {
      return [yield* ranksOf(names)];
    });
  }

  *threadRows({ col, unit }) {
    const { words, columns } = this.data;
    const at = name => columns.findIndex(column => column.name === name);
    const amount = (thread, name, unit) => (unit === 'bytes' ? thread.amounts[at(name)]?.bytes : thread.amounts[at(name)]?.objects) ?? 0;
    const threads = this.bounds === null ? words.threads.filter(thread => amount(thread, col, unit) > 0) : [];
    const list = (name, unit) => Float64Array.from(threads, thread => amount(thread, name, unit));
    const values = {
      self: list(col, unit), total: list(col, unit), blocks: list(col, 'blocks'), allocations: list('allocated', 'blocks'), allocatedBytes: list('allocated', 'bytes'), temporaries: list('temporary', 'blocks'),
    };
    yield;
    const names = threads.map(({ name }) => (name === '' ? '[not told]' : name));
    return new Rows(yield* withShares(values), { name: row => names[row] }, function* () {
      return [yield* ranksOf(names)];
    });
  }
}

// What some nodes have.
function amountsOf(amounts, nodes) {
  const values = new Float64Array(nodes.length);
  for (let i = 0; i < values.length; i++) values[i] = amounts[nodes[i]];
  return values;
}

// The nodes of sites, each once, and of each the distance of the frame that tells whose it is, and the type that all
// its sites have.
function leavesOf({ node, telling, type }, count) {
  const [seen, nodes, distances, types] = [new Uint32Array(count), [], [], []];
  for (let site = 0; site < node.length; site++) {
    if (seen[node[site]] > 0) {
      if (types[seen[node[site]] - 1] !== type[site]) types[seen[node[site]] - 1] = 0;
      continue;
    }
    seen[node[site]] = nodes.push(node[site]);
    distances.push(telling[site]);
    types.push(type[site]);
  }
  return { nodes: Uint32Array.from(nodes), telling: Uint32Array.from(distances), types: Uint32Array.from(types) };
}

// Of each frame the group of its module, and what the groups are called.
function modulesOf(frames, strings) {
  return grouped(frames.module, frames, at => (frames.module[at] > 0 ? strings[frames.module[at]] : '[none]'));
}

function filesOf(frames, strings) {
  const key = frames.file.map((file, at) => (file > 0 ? file : strings.length + frames.module[at]));
  return grouped(key, frames, at => fileName(strings, frames.file[at], frames.module[at]));
}

function grouped(keys, frames, title) {
  const [known, titles, groupOf] = [new Map(), [], new Uint32Array(keys.length)];
  keys.forEach((key, at) => {
    if (!known.has(key)) {
      known.set(key, titles.length);
      titles.push(title(at));
    }
    groupOf[at] = known.get(key);
  });
  return { groupOf, titles };
}
