// The rows of the table as lists of numbers: sums over the call tree by function, file or module, and the sites one by
// one. Pure.
import { baseName, shortName } from './text.js';
import { inParts } from './work.js';

// So many functions name a site, at most.
export const NAMED = 4;

// A list of so many numbers.
export function listOf(Kind, count, valueOf) {
  const list = new Kind(count);
  for (let i = 0; i < count; i++) list[i] = valueOf(i);
  return list;
}

// Rows of a table. `values` has a list for each column of numbers; names are made for those rows only that are looked
// at.
export class Rows {
  // `names` are `name`, `place`, `type`, `whole`, `node`: functions that tell them of a row, if there are such;
  // `ranks(column)` is a generator for the order of texts.
  constructor(values, names, ranks) {
    Object.assign(this, { values, names, ranks });
    this.count = values.self.length;
    this.whole = values.self.reduce((sum, value) => sum + value, 0);
    this.orders = new Map();
  }

  name(row) {
    return this.names.name(row);
  }

  text(column, row) {
    return this.names[column]?.(row) ?? '';
  }

  // One row as an object.
  at(row) {
    const { name, place, type, whole, node } = this.names;
    const told = { name: name(row), place: place?.(row), type: type?.(row), whole: whole?.(row), node: node?.(row) };
    for (const [key, list] of Object.entries(this.values)) told[key] = list[row];
    return told;
  }

  // The numbers of the rows in order of a column. What has no value comes last; equal ones are by name, where names are
  // known of all.
  *order(column, down) {
    const key = `${column} ${down}`;
    if (!this.orders.has(key)) {
      let order = listOf(Uint32Array, this.count, i => i);
      const isText = this.values[column] === undefined;
      for (const ranks of yield* this.ranks(isText ? column : '')) order = yield* sortedBy(order, ranks, isText && down);
      yield;
      if (!isText) {
        const keys = notNegative(this.values[column]);
        yield;
        order = yield* sortedBy(order, keys, down);
      }
      this.orders.set(key, order);
    }
    return this.orders.get(key);
  }
}

// Numbers with the same differences, none of which is below 0.
function notNegative(list) {
  let least = 0;
  for (let i = 0; i < list.length; i++) {
    // NaN is never less
    if (list[i] < least) least = list[i];
  }
  return least < 0 ? list.map(value => value - least) : list;
}

// Numbers in order of the keys that they have, none below 0; NaN comes last. Equal ones stay as they are. By digits of
// 16 bits, from the last on.
export function* sortedBy(order, keys, down) {
  const values = new Float64Array(keys);
  const bits = new Uint16Array(values.buffer);
  yield;
  if (down) yield* inParts(values.length, (from, to) => turn(values, bits, from, to));
  let [from, to] = [order, new Uint32Array(order.length)];
  const counts = new Uint32Array(1 << 16);
  for (let digit = 0; digit < 4; digit++) {
    counts.fill(0);
    for (let i = 0; i < from.length; i++) counts[bits[4 * from[i] + digit]] += 1;
    if (from.length === 0 || counts[bits[4 * from[0] + digit]] === from.length) continue;
    yield;
    for (let i = 0, sum = 0; i < counts.length; i++) {
      sum += counts[i];
      counts[i] = sum - counts[i];
    }
    for (let i = 0; i < from.length; i++) to[counts[bits[4 * from[i] + digit]]++] = from[i];
    [from, to] = [to, from === order ? new Uint32Array(order.length) : from];
    yield;
  }
  return from;
}

// Turns the order of such numbers round, but for NaN, which stays last. `bits` are those of `values`: the sign's, the
// highest one, is 0.
function turn(values, bits, from, to) {
  for (let i = from; i < to; i++) {
    if (Number.isNaN(values[i])) bits.fill(0xffff, 4 * i, 4 * i + 4);
    else {
      for (let digit = 4 * i; digit < 4 * i + 3; digit++) bits[digit] = ~bits[digit];
      bits[4 * i + 3] = ~bits[4 * i + 3] & 0x7fff;
    }
  }
}

// For each text its place in their order; equal ones have the same. Sorted in parts, which are merged.
export function* ranksOf(texts) {
  const less = (a, b) => (texts[a] < texts[b] ? -1 : texts[a] > texts[b] ? 1 : 0);
  let order = listOf(Uint32Array, texts.length, i => i);
  const width = 1024;
  for (let from = 0; from < order.length; from += width) {
    order.subarray(from, from + width).sort(less);
    yield;
  }
  for (let length = width; length < order.length; length *= 2) {
    const merged = new Uint32Array(order.length);
    for (let from = 0; from < order.length; from += 2 * length) {
      const [middle, to] = [Math.min(order.length, from + length), Math.min(order.length, from + 2 * length)];
      let [left, right] = [from, middle];
      for (let at = from; at < to; at++) {
        const isLeft = right >= to || (left < middle && less(order[left], order[right]) <= 0);
        merged[at] = isLeft ? order[left++] : order[right++];
        if (at % 4096 === 0) yield;
      }
    }
    order = merged;
  }
  const ranks = new Uint32Array(order.length);
  for (let i = 1; i < order.length; i++) ranks[order[i]] = ranks[order[i - 1]] + (less(order[i - 1], order[i]) === 0 ? 0 : 1);
  return ranks;
}

// Sums of what the nodes of a tree have in common. `groupOf` has for each value of `kind`, a list of the tree, a whole
// number below `groups`. `own` has amounts that the nodes have by themselves, by name; `totals` has amounts with all
// below, by name: `total` are those of `self`. The result has lists of what has something: `group`, the sums, and under
// the names of `totals` what stacks through it have: each counts once.
export function* sumsBy(tree, kind, groupOf, groups, own, totals) {
  const sums = {};
  for (const [name, amounts] of Object.entries(own)) {
    sums[name] = new Float64Array(groups);
    yield* inParts(tree.n, (from, to) => ownPart(kind, groupOf, amounts, sums[name], Math.max(1, from), to));
  }
  for (const [name, amounts] of Object.entries(totals)) {
    sums[name] = new Float64Array(groups);
    const until = new Int32Array(groups);
    yield* inParts(tree.n, (from, to) => totalsPart(tree, kind, groupOf, until, amounts, sums[name], Math.max(1, from), to));
  }
  const used = [];
  for (let group = 0; group < groups; group++) {
    if (sums.total[group] > 0 || sums.self[group] > 0) used.push(group);
  }
  const values = Object.fromEntries(Object.entries(sums).map(([name, list]) => [name, listOf(Float64Array, used.length, i => list[used[i]])]));
  return { group: Uint32Array.from(used), values: yield* withShares(values) };
}

function ownPart(kind, groupOf, own, sums, from, to) {
  for (let i = from; i < to; i++) {
    if (own[i] !== 0) sums[groupOf[kind[i]]] += own[i];
  }
}

function totalsPart(tree, kind, groupOf, until, totals, sums, from, to) {
  for (let i = from; i < to; i++) {
    const group = groupOf[kind[i]];
    if (i >= until[group]) {
      until[group] = tree.end[i];
      sums[group] += totals[i];
    }
  }
}

// Adds what follows from the sums: the mean size of the blocks allocated, the share of them that were temporary, and
// for how many seconds those lived that were freed; of a difference, by how much they have changed.
export function* withShares(values) {
  const { allocations, allocatedBytes, temporaries, freed, lifetimes, before, after } = values;
  if (before !== undefined) return { ...values, change: listOf(Float64Array, before.length, i => after[i] - before[i]) };
  const shares = { ...values, mean: quotientsOf(allocatedBytes, allocations, 1) };
  yield;
  shares.temporary = quotientsOf(temporaries, allocations, 1);
  if (lifetimes === undefined) return shares;
  yield;
  // lifetimes are in microseconds
  return { ...shares, lifetime: quotientsOf(lifetimes, freed, 1e6) };
}

// Each `part` of its `whole`, divided by `unit`; NaN of nothing.
function quotientsOf(part, whole, unit) {
  const shares = new Float64Array(whole.length);
  for (let i = 0; i < shares.length; i++) shares[i] = whole[i] > 0 ? part[i] / whole[i] / unit : NaN;
  return shares;
}

// What a site is called: the function that tells whose allocation it is, and who calls that, as far as these are not
// the same.
export function siteName(tree, strings, node, telling) {
  const names = [];
  for (let at = tellingNode(tree, node, telling); at > 0 && names.length < NAMED; at = tree.parent[at]) {
    const name = shortName(strings[tree.func[at]]);
    if (name !== names[names.length - 1]) names.push(name);
  }
  return names.join(' ← ');
}

// The node of the function that tells whose allocation it is.
export function tellingNode(tree, node, telling) {
  let at = node;
  for (let up = 0; up < telling && tree.parent[at] > 0; up++) at = tree.parent[at];
  return at;
}

// What a file is called in the table: its path; of what has none, the module in brackets.
export function fileName(strings, file, module) {
  if (file > 0) return strings[file];
  return module > 0 ? `[${baseName(strings[module])}]` : '[unknown]';
}

// Rows as CSV (RFC 4180). Texts that a spreadsheet would take for formulas get an apostrophe before them.
export function* csv(columns, rows, order) {
  const cell = value => {
    if (typeof value === 'number') return Number.isNaN(value) ? '' : String(value);
    const text = /^[=+\-@\t]/.test(value) ? `'${value}` : value;
    return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  const lines = [columns.map(column => cell(column.title)).join(',')];
  for (let i = 0; i < order.length; i++) {
    const row = order[i];
    lines.push(columns.map(({ key }) => cell(rows.values[key] === undefined ? rows.text(key, row) : rows.values[key][row])).join(','));
    if (i % 1024 === 1023) yield;
  }
  return lines.map(line => `${line}\r\n`).join('');
}
