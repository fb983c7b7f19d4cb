import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allCallers, callees, callers, firstTree, folded, matched } from '../tree.js';
import { csv, ranksOf, Rows, sortedBy, sumsBy, withShares } from '../sums.js';
import { finished, Work } from '../work.js';

// main(0) → a(1) → b(2) → a(1) → b(2); main → c(3) → b(2); the amounts are those of the innermost calls.
const names = [0, 1, 2, 3];
const tree = () => firstTree(Uint32Array.of(0, 1, 2, 3, 4, 5, 2, 3), Uint32Array.of(0, 0, 1, 2, 1, 2, 3, 2), names);
const own = Float64Array.of(0, 0, 1, 2, 4, 8, 16, 32);
const shape = ({ depth, func, n }, totals) => Array.from({ length: n }, (_, i) => `${' '.repeat(depth[i])}${func[i] < 0 ? 'all' : 'mabc'[func[i]]} ${totals[i]}`);

test('totals go up to the root', () => {
  const first = tree();
  assert.deepEqual(shape(first, first.totals(own)), ['all 63', ' m 63', '  a 15', '   b 14', '    a 12', '     b 8', '  c 48', '   b 32']);
  assert.deepEqual([...first.end], [8, 8, 6, 6, 6, 6, 8, 8]);
});

test('hidden functions give to their callers what they have', () => {
  const hidden = Uint8Array.of(0, 1, 0, 0);
  const made = finished(folded(tree(), hidden, false));
  assert.deepEqual(shape(made, made.totals(own)), ['all 63', ' m 63', '  b 14', '   b 8', '  c 48', '   b 32']);
  assert.deepEqual([...made.own(own)], [0, 1, 6, 8, 16, 32]);
});

test('merged recursion keeps each function once on a way', () => {
  const made = finished(folded(tree(), null, true));
  assert.deepEqual(shape(made, made.totals(own)), ['all 63', ' m 63', '  a 15', '   b 10', '  c 48', '   b 32']);
});

test('callers begin at the innermost call, callees at the outermost', () => {
  const of = finished(callers(tree(), 2));
  assert.deepEqual(shape(of, of.totals(own)), ['all 46', ' b 46', '  a 14', '   m 6', '   b 8', '    a 8', '     m 8', '  c 32', '   m 32']);
  const down = finished(callees(tree(), 1));
  assert.deepEqual(shape(down, down.totals(own)), ['all 15', ' a 15', '  b 14', '   a 12', '    b 8']);
  const up = finished(allCallers(tree(), own));
  assert.equal(up.totals(own)[0], 63);
  // trees of trees: the map leads back to the first one
  const merged = finished(folded(tree(), null, true));
  const both = finished(callers(merged, 2));
  assert.deepEqual(shape(both, both.totals(own)), ['all 42', ' b 42', '  a 10', '   m 10', '  c 32', '   m 32']);
});

test('what is found counts once for each stack', () => {
  const first = tree();
  assert.deepEqual(matched(first, first.totals(own), 0, Uint8Array.of(0, 1, 1, 0)), { sum: 47, nodes: 2 });
});

test('sums of groups count each stack once', () => {
  const first = tree();
  const none = new Float64Array(8);
  const { group, values } = finished(sumsBy(first, first.func, Uint32Array.of(0, 1, 2, 3), 4, { self: own, allocations: none, allocatedBytes: none, temporaries: none }, { total: first.totals(own) }));
  assert.deepEqual([[...group], [...values.total], [...values.self]], [[0, 1, 2, 3], [63, 15, 46, 48], [0, 5, 42, 16]]);
});

test('rows are in order of numbers or names, equal ones by name', () => {
  const names = ['b', 'd', 'a', 'c', 'b'];
  const none = new Float64Array(5);
  const values = finished(withShares({ self: Float64Array.of(5, 2 ** 40, 5, 0, 7), allocations: Float64Array.of(1, 2, 0, 4, 1), allocatedBytes: Float64Array.of(3, 2, 0, 6, 70000), temporaries: none }));
  const rows = new Rows(values, { name: row => names[row] }, function* () {
    return [yield* ranksOf(names)];
  });
  const order = (column, down) => [...finished(rows.order(column, down))];
  assert.deepEqual([order('self', true), order('self', false)], [[1, 4, 2, 0, 3], [3, 2, 0, 4, 1]]);
  assert.deepEqual([order('mean', true), order('mean', false)], [[4, 0, 3, 1, 2], [1, 3, 0, 4, 2]]);
  assert.deepEqual([order('name', false), order('name', true)], [[2, 0, 4, 3, 1], [1, 3, 0, 4, 2]]);
  assert.equal(rows.whole, 2 ** 40 + 17);
});

test('what has no value comes last, behind zeros', () => {
  const keys = Float64Array.of(NaN, 0, NaN, 0, 2);
  const sorted = down => [...finished(sortedBy(Uint32Array.of(0, 1, 2, 3, 4), keys, down))];
  assert.deepEqual([sorted(true), sorted(false)], [[4, 1, 3, 0, 2], [1, 3, 4, 0, 2]]);
});

test('long lists are sorted as the language sorts them', () => {
  let seed = 1;
  const next = () => (seed = (seed * 48271) % 2147483647);
  const numbers = Float64Array.from({ length: 9000 }, () => (next() % 5 === 0 ? next() * 2 ** 20 : next() % 100 / 7));
  const plain = Uint32Array.from(numbers, (_, i) => i);
  assert.deepEqual(finished(sortedBy(plain, numbers, false)), Uint32Array.from(plain).sort((a, b) => numbers[a] - numbers[b]));
  assert.deepEqual(finished(sortedBy(plain, numbers, true)), Uint32Array.from(plain).sort((a, b) => numbers[b] - numbers[a]));
  const names = [...numbers].map(String);
  const different = [...new Set(names)].sort();
  assert.deepEqual([...finished(ranksOf(names))], names.map(name => different.indexOf(name)));
});

// A tree of 4,000 stacks of 6 functions, some of them again and again on one stack.
function large() {
  let seed = 7;
  const next = most => (seed = (seed * 48271) % 2147483647) % most;
  const stacks = [...new Set(Array.from({ length: 4000 }, () => Array.from({ length: 1 + next(9) }, () => next(6)).join('')))].sort();
  const [depth, frame, amounts, stack] = [[0], [0], [0], []];
  for (const text of stacks) {
    let same = 0;
    while (same < stack.length && same < text.length && stack[same] === text[same]) same += 1;
    stack.length = same;
    for (let i = same; i < text.length; i++) {
      stack.push(text[i]);
      depth.push(i + 1);
      frame.push(Number(text[i]));
      amounts.push(0);
    }
    amounts[amounts.length - 1] = 1 + next(1000);
  }
  return { tree: firstTree(Uint32Array.from(depth), Uint32Array.from(frame), [0, 1, 2, 3, 4, 5]), own: Float64Array.from(amounts) };
}

// The functions on the way to a node, as text.
function wayTo({ parent, func }, node) {
  let way = '';
  for (let at = node; at > 0; at = parent[at]) way = func[at] + way;
  return way;
}

// What each way of a tree has, as texts, without what has nothing.
function ways(made, totals) {
  const sums = new Map();
  for (let i = 1; i < made.n; i++) {
    const way = wayTo(made, i);
    assert.equal(sums.has(way), false, `${way} is there once`);
    if (totals[i] > 0) sums.set(way, totals[i]);
  }
  return new Map([...sums].sort());
}

// The same by texts alone: each stack becomes one, or none.
function waysOf({ tree, own }, change) {
  const sums = new Map();
  for (let i = 1; i < tree.n; i++) {
    const way = own[i] > 0 ? change(wayTo(tree, i)) : null;
    for (let length = 1; way !== null && length <= way.length; length++) sums.set(way.slice(0, length), (sums.get(way.slice(0, length)) ?? 0) + own[i]);
  }
  return new Map([...sums].sort());
}

test('other trees of a large one are those that its stacks make one by one', () => {
  const profile = large();
  const reversed = text => [...text].reverse().join('');
  const hidden = Uint8Array.of(0, 0, 1, 0, 1, 0);
  const shown = text => text.replaceAll(/[24]/g, '');
  const hiding = finished(folded(profile.tree, hidden, false));
  assert.deepEqual(ways(hiding, hiding.totals(profile.own)), waysOf(profile, shown));
  const above = (text, func) => (text.includes(func) ? reversed(text.slice(0, text.lastIndexOf(func) + 1)) : null);
  const below = (text, func) => (text.includes(func) ? text.slice(text.indexOf(func)) : null);
  for (const func of [0, 3]) {
    const [up, down] = [finished(callers(profile.tree, func)), finished(callees(profile.tree, func))];
    assert.deepEqual(ways(up, up.totals(profile.own)), waysOf(profile, text => above(text, func)));
    assert.deepEqual(ways(down, down.totals(profile.own)), waysOf(profile, text => below(text, func)));
    const [upShown, downShown] = [finished(callers(hiding, func)), finished(callees(hiding, func))];
    assert.deepEqual(ways(upShown, upShown.totals(profile.own)), waysOf(profile, text => above(shown(text), func)));
    assert.deepEqual(ways(downShown, downShown.totals(profile.own)), waysOf(profile, text => below(shown(text), func)));
  }
  const merged = finished(folded(profile.tree, null, true));
  assert.deepEqual(ways(merged, merged.totals(profile.own)), waysOf(profile, text => {
    let way = '';
    for (const func of text) way = way.includes(func) ? way.slice(0, way.indexOf(func) + 1) : way + func;
    return way;
  }));
});

test('work goes on in slices, and what was begun later comes in its place', async () => {
  const work = new Work();
  const told = [];
  const steps = function* (name, ms) {
    const until = performance.now() + ms;
    while (performance.now() < until) yield;
    return name;
  };
  work.begin(steps('short', 0), name => told.push(name), () => told.push('never'));
  assert.deepEqual(told, ['short']);
  work.begin(steps('first', 60_000), name => told.push(name), () => told.push('waits'));
  work.begin(steps('second', 30), name => told.push(name), () => told.push('waits'));
  assert.deepEqual(told, ['short', 'waits', 'waits']);
  await work.settled();
  assert.deepEqual(told, ['short', 'waits', 'waits', 'second']);
  work.channel.port1.close();
});

test('cells of CSV are quoted where they must be, and are no formulas', () => {
  const columns = [{ key: 'name', title: 'Function' }, { key: 'self', title: 'Bytes' }];
  const names = ['=1+1', 'f<a, "b">'];
  const rows = new Rows({ self: Float64Array.of(NaN, 3) }, { name: row => names[row] });
  assert.equal(finished(csv(columns, rows, [1, 0])), 'Function,Bytes\r\n"f<a, ""b"">",3\r\n\'=1+1,\r\n');
});
