import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Numbers, unpack } from '../data.js';
import { deflateSync } from 'node:zlib';
import { firstState, fragmentOf, stateOf } from '../state.js';
import { cornersOf, levelBefore, ratesOf, reachOf, windowOf } from '../course.js';
import { niceStep, shortCount } from '../timeline.js';
import { boundsOf, ownIn } from '../window.js';
import { linesOf } from '../source.js';
import { grows } from '../words.js';

test('a fragment says what differs, and leads back', () => {
  const first = firstState('peak');
  const state = { ...first, view: 'table', col: 'live', q: 'a&b=c#d €', merge: true, down: false, from: 5, zoom: 17 };
  const fragment = fragmentOf(state, first);
  assert.equal(fragmentOf(first, first), '');
  assert.deepEqual(stateOf(`#${fragment}`, first, ['peak', 'live']), state);
});

test('what makes no sense in a fragment is left out', () => {
  const first = firstState('peak');
  assert.deepEqual(stateOf('#view=moon&col=toString&zoom=NaN&%&__proto__=1&q=%E0%A4%A&unit', first, ['peak']), first);
});

test('numbers and packed blocks are read', async () => {
  const numbers = new Numbers(Uint8Array.of(3, 5, 0xac, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f));
  assert.deepEqual([...numbers.list(Float64Array)], [5, 300, 2 ** 53 - 1]);
  const packed = deflateSync(Buffer.from('heap')).toString('base64');
  assert.equal(Buffer.from(await unpack(packed)).toString(), 'heap');
});

test('windows and growth of a course', () => {
  const course = [0, 1, 2, 3, 4, 5, 6, 7].map(i => ({ t_ns: i * 10, live_bytes: i * 100, allocations: i }));
  assert.deepEqual(windowOf(course, 15, 55), { change: 400, allocations: 4, most: 500 });
  assert.equal(grows(course, 70), true);
  assert.equal(grows(course.map(point => ({ ...point, live_bytes: 700 - point.live_bytes })), 70, 700), false);
  assert.equal(grows(course.slice(4), 70), false);
  assert.equal(grows(course, 1000), false, 'nothing was allocated in the last quarters');
  assert.deepEqual([niceStep(1000, 3, true), niceStep(7, 5, false)], [512, 2]);
});

test('lines of a function have their bytes, and what is around them', () => {
  // frames: f at a.c:5, f at a.c:9, g at a.c:6, f at b.c:1
  const frames = { name: [1, 1, 2, 1], file: [3, 3, 3, 4], line: [5, 9, 6, 1] };
  const line = (frame, own, total) => ({ frame, own: [own], total: [total] });
  const texts = numbers => numbers.map(number => [number, `line ${number}`]);
  const source = {
    lines: [line(0, 10, 30), line(1, 0, 0), line(2, 5, 5), line(3, 1, 1)],
    files: [{ frame: 0, doubt: null, lines: texts([3, 4, 5, 6, 7, 8, 9]) }, { frame: 3, doubt: 'old', lines: texts([1, 2, 3]) }],
  };
  const shown = linesOf(source, frames, 1, 0).map(({ file, doubt, lines }) => [file, doubt, lines.map(({ number, own, total }) => `${number} ${own} ${total}`)]);
  assert.deepEqual(shown, [[3, null, ['3 0 0', '4 0 0', '5 10 30', '6 0 0', '7 0 0']], [4, 'old', ['1 1 1', '2 0 0', '3 0 0']]]);
  assert.deepEqual(linesOf(source, frames, 5, 0), []);
});

// Two blocks of 50 bytes, 300 ms apart, of which nothing is before the first and which are freed one after the other.
const steps = [[300e6, 50, 1], [600e6, 100, 2], [900e6, 50, 2], [901e6, 0, 2]].map(([t_ns, live_bytes, allocations]) => ({ t_ns, live_bytes, allocations }));

test('live bytes stay as they are until an event', () => {
  assert.deepEqual(cornersOf(steps, 1200e6, 0).map(([time, bytes]) => [time / 1e6, bytes]), [
    [0, 0], [300, 0], [300, 50], [600, 50], [600, 100], [900, 100], [900, 50], [901, 50], [901, 0], [1200, 0],
  ]);
  const at = time => windowOf(steps, time * 1e6, time * 1e6).most;
  assert.deepEqual([0, 299, 300, 450, 599, 600, 899, 900, 950, 1200].map(at), [0, 0, 50, 50, 50, 100, 100, 50, 0, 0]);
  assert.deepEqual(windowOf(steps, 100e6, 450e6), { change: 50, allocations: 1, most: 50 });
  // what lived before is there until the first event, and what lives at the end until the end
  assert.equal(levelBefore({ live_bytes: 700, bytes_allocated: 400, bytes_freed: 200 }), 500);
  assert.deepEqual(cornersOf([{ t_ns: 5, live_bytes: 700 }], 9, 500), [[0, 500], [5, 500], [5, 700], [9, 700]]);
  assert.deepEqual(windowOf([{ t_ns: 5, live_bytes: 700, allocations: 1 }], 1, 4, 500), { change: 0, allocations: 0, most: 500 });
});

test('no rate is shown where nothing was allocated', () => {
  const parts = [...ratesOf(steps, 1200e6, 120, reachOf(steps, 1200e6))].map((rate, part) => [part, rate]).filter(([, rate]) => rate > 0);
  assert.deepEqual(parts.map(([part, rate]) => [part, Math.round(rate)]), [[29, 100], [59, 100]]);
  // of many points each stands for an interval, so long as the course at most through the least number of them
  const many = Array.from({ length: 600 }, (_, i) => ({ t_ns: 500e6 + i * 1e6, live_bytes: 0, allocations: i }));
  const reach = reachOf(many, 1200e6);
  assert.ok(reach > 1e6 && reach < 5e6, String(reach));
  const rates = [...ratesOf(many, 1200e6, 120, reach)];
  assert.ok(rates.slice(0, 49).every(rate => rate === 0));
  assert.equal(Math.round(rates.reduce((sum, rate) => sum + rate, 0) * 10e6 / 1e9), 599);
});

test('rates add up to the allocations, wherever the points lie', () => {
  const course = [{ t_ns: 5, allocations: 10 }, { t_ns: 25, allocations: 30 }, { t_ns: 25, allocations: 31 }, { t_ns: 80, allocations: 31 }, { t_ns: 100, allocations: 35 }];
  const rates = ratesOf(course, 100, 10, Infinity);
  assert.deepEqual([...rates].map(rate => Math.round(rate / 1e8 * 1e6) / 1e6), [15, 10, 6, 0, 0, 0, 0, 0, 2, 2]);
  assert.deepEqual([0, 999, 1000, 12345, 2.5e6, 3e9].map(shortCount), ['0', '999', '1 k', '12.3 k', '2.5 M', '3 G']);
});

test('a window has what came and went between two heaps', () => {
  const amounts = (...bytes) => ({ blocks: bytes.map(() => 1), bytes });
  const heaps = [
    { t: 10, node: [1], allocated: amounts(100), live: amounts(100) },
    { t: 20, node: [1, 2], allocated: amounts(50, 30), live: amounts(-60, 30) },
    { t: 30, node: [1], allocated: amounts(5), live: amounts(-40) },
  ];
  assert.equal(boundsOf(heaps, -1, -1), null);
  assert.equal(boundsOf([], 1, 2), null);
  assert.deepEqual([boundsOf(heaps, 0, 12), boundsOf(heaps, 11, 29), boundsOf(heaps, 29, 30)], [{ begin: -1, end: 0 }, { begin: 0, end: 2 }, { begin: 1, end: 2 }]);
  const own = column => [...ownIn(heaps, 3, { begin: 0, end: 2 }, column, 'bytes')];
  assert.deepEqual([own('allocated'), own('freed'), own('live'), own('peak')], [[0, 55, 30], [0, 155, 0], [0, 0, 30], [0, 100, 0]]);
  assert.equal(ownIn(heaps, 3, { begin: 0, end: 2 }, 'temporary', 'bytes'), null);
});
