import assert from 'node:assert/strict';
import { test } from 'node:test';
import { callees, callers, firstTree, folded, matched } from '../tree.js';
import { csv, sorted, sumsBy } from '../sums.js';

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
  const made = folded(tree(), hidden, false);
  assert.deepEqual(shape(made, made.totals(own)), ['all 63', ' m 63', '  b 14', '   b 8', '  c 48', '   b 32']);
  assert.deepEqual([...made.own(own)], [0, 1, 6, 8, 16, 32]);
});

test('merged recursion keeps each function once on a way', () => {
  const made = folded(tree(), null, true);
  assert.deepEqual(shape(made, made.totals(own)), ['all 63', ' m 63', '  a 15', '   b 10', '  c 48', '   b 32']);
});

test('callers begin at the innermost call, callees at the outermost', () => {
  const of = callers(tree(), 2);
  assert.deepEqual(shape(of, of.totals(own)), ['all 46', ' b 46', '  a 14', '   m 6', '   b 8', '    a 8', '     m 8', '  c 32', '   m 32']);
  const down = callees(tree(), 1);
  assert.deepEqual(shape(down, down.totals(own)), ['all 15', ' a 15', '  b 14', '   a 12', '    b 8']);
  const up = callers(tree(), -1, own);
  assert.equal(up.totals(own)[0], 63);
  // trees of trees: the map leads back to the first one
  const merged = folded(tree(), null, true);
  const both = callers(merged, 2);
  assert.deepEqual(shape(both, both.totals(own)), ['all 42', ' b 42', '  a 10', '   m 10', '  c 32', '   m 32']);
});

test('what is found counts once for each stack', () => {
  const first = tree();
  assert.deepEqual(matched(first, first.totals(own), 0, Uint8Array.of(0, 1, 1, 0)), { sum: 47, nodes: 2 });
});

test('sums of groups count each stack once', () => {
  const first = tree();
  const rows = sumsBy(first, 4, node => first.func[node], { self: own }, 'self');
  assert.deepEqual(rows, [{ group: 0, total: 63, self: 0 }, { group: 1, total: 15, self: 5 }, { group: 2, total: 46, self: 42 }, { group: 3, total: 48, self: 16 }]);
  const named = rows.map(row => ({ ...row, name: 'mabc'[row.group] }));
  assert.deepEqual(sorted(named, 'self', true).map(row => row.name), ['b', 'c', 'a', 'm']);
  assert.deepEqual(sorted(named, 'name', false).map(row => row.name), ['a', 'b', 'c', 'm']);
});

test('cells of CSV are quoted where they must be, and are no formulas', () => {
  const columns = [{ key: 'name', title: 'Function' }, { key: 'self', title: 'Bytes' }];
  assert.equal(csv(columns, [{ name: 'f<a, "b">', self: 3 }, { name: '=1+1', self: NaN }]), 'Function,Bytes\r\n"f<a, ""b"">",3\r\n\'=1+1,\r\n');
});
