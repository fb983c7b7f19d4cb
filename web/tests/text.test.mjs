import assert from 'node:assert/strict';
import { test } from 'node:test';
import { bytesText, countText, durationText, matcher, percentText, printable, shortName } from '../text.js';

test('amounts are written as the summary writes them', () => {
  assert.deepEqual([0, 1023, 1024, 1536, 1048571, 1048576, 5 * 2 ** 30].map(bytesText), ['0 B', '1023 B', '1.00 KiB', '1.50 KiB', '1.00 MiB', '1.00 MiB', '5.00 GiB']);
  assert.deepEqual([0, 999, 1000, 1234567.4, 2 ** 53].map(countText), ['0', '999', '1,000', '1,234,567', '9,007,199,254,740,992']);
  assert.deepEqual([[0, 0], [1, 10000], [0, 5], [1, 3]].map(pair => percentText(...pair)), ['–', '<0.1 %', '0.0 %', '33.3 %']);
  assert.deepEqual([0, 12, 45_600_000, 1_230_000_000, 62e9, 7380e9].map(durationText), ['0 s', '12 ns', '45.6 ms', '1.23 s', '1 min 02 s', '2 h 03 min']);
});

test('names lose what makes them long, and nothing else', () => {
  const short = {
    'std::vector<int, std::allocator<int> >::reserve(unsigned long)': 'std::vector::reserve',
    'operator new(unsigned long)': 'operator new',
    'shop::operator<<(std::ostream&, int)': 'shop::operator<<',
    'a::b::h0123456789abcdef': 'a::b',
    '<alpha::Beta as core::clone::Clone>::clone': '<alpha::Beta as core::clone::Clone>::clone',
    '(anonymous namespace)::f(int)': '(anonymous namespace)::f',
    'f(int)::{lambda(int)#1}::operator()(int) const': 'f::{lambda#1}::operator()',
    'unbalanced<': 'unbalanced<',
  };
  for (const [name, expected] of Object.entries(short)) assert.equal(shortName(name), expected);
});

test('what was typed is a part of a name or an expression', () => {
  assert.equal(matcher('  '), null);
  assert.equal(matcher('/(/'), null);
  assert.equal(matcher('NODE')('new_node'), true);
  assert.equal(matcher('/^new_/')('new_node') && !matcher('/^node/')('new_node'), true);
});

test('characters that do something are not shown', () => {
  assert.equal(printable('a\u202eb\u001bc\nd'), 'a?b?c?d');
});
