import assert from 'node:assert/strict';
import { test } from 'node:test';
import { firstState } from '../state.js';
import { Model } from '../model.js';
import { Rows } from '../sums.js';
import { firstRow, Table } from '../table.js';
import { Timeline } from '../timeline.js';
import { differences, sentences } from '../words.js';
import { Work } from '../work.js';

// A table without elements: it counts its heads and bodies.
function bareTable() {
  const table = Object.create(Table.prototype);
  const nothing = () => {};
  return Object.assign(table, {
    columns: [], heads: 0, bodies: 0, table: { tHead: { replaceChildren: nothing }, setAttribute: nothing }, layOut: nothing, fill: nothing,
    head: () => (table.heads += 1), build: () => (table.bodies += 1),
  });
}

test('a table writes its cells in the unit that is shown, also where its head stays', () => {
  const rows = new Rows({ self: Float64Array.of(2048) }, { name: () => 'f' });
  for (const by of ['function', 'file', 'module', 'thread', 'type', 'site']) {
    const table = bareTable();
    const written = unit => {
      table.show(rows, [0], Table.columns(by, unit), 'self', true);
      return table.columns.find(({ key }) => key === 'self').text(2048);
    };
    assert.deepEqual([written('bytes'), written('blocks'), written('bytes')], ['2.00 KiB', '2,048', '2.00 KiB'], by);
    assert.equal(table.bodies, 1, by);
  }
  const table = bareTable();
  for (const by of ['function', 'function', 'file', 'module', 'site']) table.show(rows, [0], Table.columns(by, 'bytes'), 'self', true);
  assert.deepEqual([table.heads, table.bodies], [4, 3]);
});

test('rows in sight are in the page, however a table is scrolled', () => {
  const [height, room] = [26, 260];
  for (const total of [3, 16, 17, 40]) {
    const count = Math.ceil(room / height) + 6;
    const most = Math.max(0, total * height - room);
    let first = firstRow(0, total, count, -Infinity);
    for (const step of [1, 7, 26, 53, 131]) {
      const tops = [0, ...Array.from({ length: Math.floor(most / step) }, (_, i) => (i + 1) * step), most];
      for (const top of [...tops, ...tops.toReversed()]) {
        first = firstRow(top, total, count, first);
        const seen = [Math.floor(top / height), Math.min(total, Math.ceil((top + room) / height))];
        assert.ok(first >= 0 && first <= seen[0] && first + count >= seen[1], `${first} at ${top} of ${total}`);
      }
    }
  }
  assert.equal(firstRow(20 * height, 100, 16, 18), 18, 'what is near enough stays');
});

// A course of 1,000 ns in 1,000 pixels that are drawn nowhere: `drawn` has the parts that are not veiled. It keeps what
// was chosen, as the page does.
function bareCourse() {
  const course = Object.create(Timeline.prototype);
  const draw = () => course.drawn.push((course.brush ?? [course.from, course.to]).join(' '));
  return Object.assign(course, { end: 1000, width: 1088, from: -1, to: -1, drag: null, brush: null, drawn: [], draw, on: { window: (from, to) => course.show(from, to, 'light') } });
}

// Presses at one place of the course, and moves to another one.
function drag(course, from, to) {
  course.drag = course.timeAt(74 + from);
  course.moved({ offsetX: 74 + to });
}

test('a course that is clicked with a moving hand is drawn as before', () => {
  const course = bareCourse();
  course.show(-1, -1, 'light');
  drag(course, 300, 302);
  course.released({ offsetX: 376 });
  assert.deepEqual(course.drawn, ['-1 -1', '300 302', '-1 -1']);
  drag(course, 300, 500);
  course.released({ offsetX: 574 });
  drag(course, 300, 499);
  course.moved({ offsetX: 574 });
  course.released({ offsetX: 574 });
  assert.deepEqual(course.drawn.slice(3), ['300 500', '300 500', '300 499', '300 500', '300 500']);
});

test('a course whose pointer is taken away shows what was chosen', () => {
  const course = bareCourse();
  course.show(100, 200, 'light');
  drag(course, 300, 500);
  course.cancelled();
  course.cancelled();
  assert.deepEqual([course.drawn, course.drag], [['100 200', '300 500', '100 200'], null]);
});

test('another window makes another tree of all callers, in which the node of a zoom is another one', () => {
  const heap = t => ({ t, node: [], allocated: { bytes: [], blocks: [] }, live: { bytes: [], blocks: [] } });
  const data = {
    strings: ['', 'f'], nodes: { depth: Uint32Array.of(0, 1), frame: Uint32Array.of(0, 0) }, frames: { name: [1] }, sites: { node: [1], telling: [0], type: [0] }, columns: [], heaps: [10, 20, 30].map(heap),
  };
  const model = new Model(data);
  const state = { ...firstState('live'), mode: 'callers', zoom: 7 };
  const all = model.changed(state, {});
  assert.equal(all.zoom, 7);
  const part = model.changed(all, { from: 10, to: 20 });
  assert.deepEqual([part.zoom, part.from, model.bounds], [0, 10, { begin: 0, end: 1 }]);
  const zoomed = model.changed(part, { zoom: 3 });
  assert.equal(model.changed(zoomed, { from: 9, to: 21 }).zoom, 3, 'the same heaps');
  assert.equal(model.changed(zoomed, { from: -1, to: -1 }).zoom, 0);
  assert.equal(model.changed(zoomed, { from: -1, to: -1, zoom: 2 }).zoom, 2);
  const icicle = model.changed(zoomed, { mode: 'icicle', zoom: 5 });
  assert.equal(model.changed(icicle, { from: 20, to: 30 }).zoom, 5, 'the tree of all is the same at all times');
});

// What a page of a difference has: main calls f, which has grown from 100 to 300, and g, which has shrunk from 50 to
// 10; h is as before.
function difference() {
  const column = (name, bytes) => ({ name, title: name, bytes: Float64Array.from(bytes), blocks: Float64Array.from(bytes, value => value / 10) });
  return {
    strings: ['', 'main', 'f', 'g', 'h', 'T'], nodes: { depth: Uint32Array.of(0, 1, 2, 2, 2), frame: Uint32Array.of(0, 0, 1, 2, 3) },
    frames: { name: [1, 2, 3, 4], file: [0, 0, 0, 0], module: [0, 0, 0, 0], line: [0, 0, 0, 0] }, sites: { node: [2, 3, 4], telling: [0, 0, 0], type: [5, 0, 5] }, heaps: [], lifetimes: null,
    columns: [column('grown', [200, 0, 0]), column('shrunk', [0, 40, 0]), column('after', [300, 10, 7]), column('before', [100, 50, 7])],
    words: { difference: { files: ['a', 'b'], value: 'Live', before: { bytes: 157, objects: 16 }, after: { bytes: 317, objects: 32 }, unchanged: 1 } },
  };
}

function finished(steps) {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

test('a difference tells what functions and sites had and have', () => {
  const model = new Model(difference());
  const rowsOf = changes => {
    const state = { ...firstState('after'), sort: 'change', ...changes };
    const { rows, order } = finished(model.table(state, 'change'));
    return [...order].map(row => rows.at(row)).map(({ name, before, after, change }) => [name, before, after, change]);
  };
  assert.deepEqual(rowsOf({ by: 'function' }), [['f', 100, 300, 200], ['main', 157, 317, 160], ['h', 7, 7, 0], ['g', 50, 10, -40]]);
  assert.deepEqual(rowsOf({ by: 'site', down: false }).map(([name, , , change]) => [name.split(' ')[0], change]), [['g', -40], ['h', 0], ['f', 200]]);
  assert.deepEqual(rowsOf({ by: 'site', col: 'shrunk' }).map(([, , , change]) => change), [-40]);
  assert.deepEqual(rowsOf({ by: 'type' }), [['T', 107, 307, 200], ['[unknown]', 50, 10, -40]]);
  const { change } = finished(model.graph(firstState('grown')));
  assert.deepEqual([[...change.before], [...change.after]], [[157, 157, 100, 50, 7], [317, 317, 300, 10, 7]]);
  const columns = Table.columns('function', 'bytes', true).map(({ title }) => title);
  assert.deepEqual(columns, ['Itself', '', 'Total', '', 'Before', 'After', 'Change', 'Function', 'Where']);
  assert.equal(Table.columns('site', 'bytes', true).find(({ key }) => key === 'change').text(-40), '−40 B');
});

test('lifetimes are means of the blocks that were freed', () => {
  const column = (name, blocks) => ({ name, title: name, bytes: Float64Array.from(blocks, count => 16 * count), blocks: Float64Array.from(blocks) });
  const data = { ...difference(), columns: [column('allocated', [4, 10, 1]), column('freed', [3, 10, 0])], lifetimes: Float64Array.of(6e6, 25, 0), words: { difference: null } };
  const rowsOf = by => {
    const { rows, order } = finished(new Model(data).table({ ...firstState('allocated'), by }, 'lifetime'));
    return [...order].map(row => rows.at(row)).map(({ name, lifetime }) => [name.split(' ')[0], lifetime]);
  };
  const expected = [['f', 2], ['g', 2.5e-6], ['h', NaN]];
  assert.deepEqual(rowsOf('site'), expected);
  assert.deepEqual(rowsOf('function').filter(([name]) => name !== 'main'), expected);
  assert.deepEqual(rowsOf('module').map(([, lifetime]) => lifetime), [6000025 / 13 / 1e6]);
  const { title, text } = Table.columns('site', 'bytes', false, true).find(({ key }) => key === 'lifetime');
  assert.deepEqual([title, text(2), text(2.5e-6), text(NaN)], ['Lifetime', '2.00 s', '2.5 µs', '–']);
  assert.ok(!Table.columns('site', 'bytes').some(({ key }) => key === 'lifetime'));
});

test('advice leads to the callers of its function', () => {
  const totals = { allocations: 9, live_blocks: 0, live_bytes: 0, peak_bytes: 0, peak_at_ns: 0, temporary: 0, bytes_allocated: 90 };
  const advice = [{ lead: 'Growth bit by bit', text: 'f makes 1 buffer larger', column: 'allocated', function: 'f' }, { lead: 'Short-lived blocks', text: 'g', column: 'temporary', function: 'g' }];
  const report = { totals, findings: [], leaks: null, verdict: null, exit: null, timeline: [] };
  const told = sentences({ report, words: { advice, resident: null }, columns: [] }, site => `site ${site}`);
  assert.deepEqual(told.map(({ kind, lead, text, to: { view, mode, fn, col, unit } }) => [kind, lead, text, view, mode, fn, col, unit]), [
    ['warn', 'Growth bit by bit', 'f makes 1 buffer larger', 'flame', 'callers', 'f', 'allocated', 'bytes'], ['warn', 'Short-lived blocks', 'g', 'flame', 'callers', 'g', 'temporary', 'blocks'],
  ]);
});

test('a difference is told in words', () => {
  const told = differences(difference(), site => `site ${site}`).map(({ kind, lead, text }) => `${kind}: ${lead}: ${text}`);
  assert.deepEqual(told, [
    'warn: +160 B (+101.9 %): Live: 157 B in 16 blocks before, 317 B in 32 blocks after', 'warn: Grown by 200 B: 100.0 % of it is one call: site 0', 'good: Shrunk by 40 B: 100.0 % of it is one call: site 1',
    'plain: 1 stack: as before',
  ]);
});

// Work that goes on in a later slice, whatever the machine does meanwhile, and tells that it does; in the end it
// returns or throws what `end` does.
function beginLater(work, end, done, told) {
  let isLater = false;
  const steps = function* () {
    while (!isLater) yield;
    return end();
  };
  work.begin(steps(), done, () => {
    isLater = true;
    told.push('waits');
  }, error => told.push(error.message));
}

test('work that fails is told of, whenever it does', { timeout: 10_000 }, async t => {
  const work = new Work();
  t.after(() => work.channel.port1.close());
  const told = [];
  const raise = name => () => {
    throw new Error(name);
  };
  const failing = function* () {
    raise('at once')();
  };
  work.begin(failing(), () => told.push('never'), () => told.push('never'), error => told.push(error.message));
  beginLater(work, raise('late'), () => told.push('never'), told);
  await assert.rejects(work.settled(), /^Error: late$/);
  beginLater(work, () => 'made', raise('done'), told);
  await assert.rejects(work.settled(), /^Error: done$/);
  await work.settled();
  beginLater(work, () => 'made', value => told.push(value), told);
  await work.settled();
  assert.deepEqual(told, ['at once', 'waits', 'late', 'waits', 'done', 'waits', 'made']);
});

test('work in place of other work goes on at the same pace', { timeout: 10_000 }, async t => {
  const work = new Work();
  t.after(() => work.channel.port1.close());
  const { port2 } = work.channel;
  let posted = 0;
  const post = port2.postMessage.bind(port2);
  port2.postMessage = message => {
    posted += 1;
    post(message);
  };
  const told = [];
  for (let i = 0; i < 5; i++) beginLater(work, () => i, value => told.push(value), told);
  assert.equal(posted, 1);
  await work.settled();
  assert.deepEqual(told, ['waits', 'waits', 'waits', 'waits', 'waits', 4]);
});
