import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sortedTests } from '../tests.js';

const row = (name, leaked, peak, grown = []) => ({ name, leaked: { bytes: leaked, objects: leaked > 0 ? 1 : 0 }, kept: { bytes: 0, objects: 0 }, peak_bytes: peak, allocated: { bytes: 0, objects: 100 - peak }, runs: 1, duration_ns: 0, grown });

test('tests that fail come first, and any column orders them', () => {
  const rows = [row('a', 0, 9), row('b', 5, 1), row('c', 7, 2), row('d', 0, 3, [{ what: 'peak', before: 1, after: 3 }]), row('e', 0, 4)];
  const names = column => sortedTests(rows, column).map(({ name }) => name).join('');
  assert.equal(names(-1), 'cbdae');
  assert.equal(names(2), 'aedcb', 'by peak');
  assert.equal(names(3), 'bcdea', 'by allocations');
  assert.equal(rows.map(({ name }) => name).join(''), 'abcde', 'the report stays as it is');
});
