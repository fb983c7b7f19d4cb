import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Flame } from '../flame.js';
import { firstTree } from '../tree.js';

// Equal numbers each time (Lehmer's generator), from 0 up to, not with, `below`.
function numbers(seed) {
  let last = seed;
  return below => {
    last = last * 48271 % 2147483647;
    return last % below;
  };
}

// A tree whose nodes have up to nine callees, and amounts of all sizes.
function grown(count, random) {
  const [depth, frame, own] = [[0], [0], Float64Array.from({ length: count }, () => (random(3) === 0 ? 0 : 2 ** random(12)))];
  while (depth.length < count) {
    depth.push(1 + random(Math.min(9, depth[depth.length - 1] + 1)));
    frame.push(random(5));
  }
  const tree = firstTree(Uint32Array.from(depth), Uint32Array.from(frame), [1, 2, 3, 4, 5]);
  return { tree, totals: tree.totals(own) };
}

// A screen whose pixels are so small.
function onScreen(t, ratio) {
  t.after(() => delete globalThis.devicePixelRatio);
  globalThis.devicePixelRatio = ratio;
}

// A graph without elements, in which a tree has its places.
function placed({ tree, totals }, zoom, width) {
  const flame = Object.assign(Object.create(Flame.prototype), { tree, totals, zoom, width, rows: [], made: [] });
  flame.place();
  return flame;
}

// Of each node below `zoom` where it begins and how wide it is, in parts of the width, however narrow.
function exact({ tree, totals }, zoom) {
  const places = new Map([[zoom, [0, 1]]]);
  const next = new Map([[zoom, 0]]);
  for (let i = zoom + 1; i < tree.end[zoom]; i++) {
    const [x, w] = [next.get(tree.parent[i]), totals[zoom] > 0 ? totals[i] / totals[zoom] : 0];
    places.set(i, [x, w]);
    next.set(tree.parent[i], x + w);
    next.set(i, x);
  }
  return places;
}

test('each pixel of a row belongs to one node, and each node that is wide enough has its pixels', t => {
  const random = numbers(7);
  for (const [count, width, ratio] of [[400, 97, 1], [3000, 300, 1], [3000, 301, 2], [3000, 250, 1.25], [2, 10, 1]]) {
    onScreen(t, ratio);
    const shown = grown(count, random);
    const { tree } = shown;
    for (const zoom of [0, 1, random(count)]) {
      const flame = placed(shown, zoom, width);
      const pixels = Math.round(width * ratio);
      const drawn = new Map();
      flame.rows.forEach((row, depth) => {
        let taken = 0;
        for (let k = 0; k < row.n; k++) {
          assert.ok(row.left[k] >= taken && row.right[k] > row.left[k] && row.right[k] <= pixels, `${row.left[k]} to ${row.right[k]} after ${taken}`);
          assert.equal(tree.depth[row.node[k]], depth);
          taken = row.right[k];
          drawn.set(row.node[k], [row.left[k], row.right[k]]);
          const caller = drawn.get(tree.parent[row.node[k]]);
          if (depth > tree.depth[zoom]) assert.ok(row.left[k] >= caller[0] && row.right[k] <= caller[1], `${row.left[k]} to ${row.right[k]} below ${caller}`);
        }
        for (let pixel = 0; pixel < pixels; pixel++) {
          const k = [...row.left.subarray(0, row.n)].findIndex((left, k) => left <= pixel && pixel < row.right[k]);
          assert.equal(row.at(pixel), k < 0 ? -1 : row.node[k]);
        }
      });
      for (const [node, [x, w]] of exact(shown, zoom)) {
        const at = flame.rows[tree.depth[node]]?.node.subarray(0, flame.rows[tree.depth[node]].n).indexOf(node) ?? -1;
        if (at < 0) {
          assert.ok(w * width * ratio < 2, `node ${node} is ${w * width * ratio} wide`);
          continue;
        }
        const row = flame.rows[tree.depth[node]];
        assert.ok(Math.abs(row.x[at] - x * width) < 1e-6 && Math.abs(row.w[at] - w * width) < 1e-6);
        assert.ok(row.left[at] > x * pixels - 1.5 && row.right[at] < (x + w) * pixels + 1.5 && row.right[at] - row.left[at] > w * pixels - 2, `${row.left[at]} to ${row.right[at]} for ${x * pixels}, ${w * pixels} wide`);
      }
    }
  }
});

// What a drawing asks the browser for. The pixels that `onScreen` tells are those by which frames are placed, these
// those of the canvas.
function inPage(t, ratio) {
  // what is put off on a busy machine is done at once
  const requestAnimationFrame = work => work();
  Object.assign(globalThis, { window: { devicePixelRatio: ratio }, document: { documentElement: {} }, getComputedStyle: () => ({ getPropertyValue: () => 'red' }), requestAnimationFrame });
  t.after(() => ['window', 'document', 'getComputedStyle', 'requestAnimationFrame'].forEach(name => delete globalThis[name]));
}

// A canvas that keeps what is done with it.
function bareCanvas() {
  const done = [];
  const context = new Proxy({}, {
    get: (_, name) => {
      if (name === 'createImageData') return (width, height) => ({ width, height, data: new Uint8ClampedArray(4 * width * height) });
      if (name === 'measureText') return text => ({ width: 7 * text.length });
      return (...values) => done.push([name, ...values]);
    },
    set: () => true,
  });
  return { done, width: 0, height: 0, style: {}, getContext: () => context };
}

// A graph of so many rows in sight, flipped and at its root.
function drawnFlame(shown, room, canvas) {
  const names = ['', 'f1', 'f2', 'f3', 'f4', 'f5'];
  const colors = { of: () => 7, root: 1, mark: 2, faint: 3 };
  const flame = placed(shown, 0, 300);
  const height = flame.rows.length * 20 + 2;
  Object.assign(flame, {
    canvas, colors, data: { strings: names }, widths: new Float32Array(names.length).fill(-1), flipped: true, found: null, change: null, focus: 0, hovered: 5,
    height, room, below: height - room, top: height - room,
  });
  flame.draw();
  return flame;
}

test('what is tried out beforehand leaves all that is shown', t => {
  inPage(t, 1);
  const [canvas, other] = [bareCanvas(), bareCanvas()];
  const shown = grown(3000, numbers(5));
  const flame = drawnFlame(shown, 100, canvas);
  const state = () => ({ ...flame, rows: flame.rows.map(row => [row.n, [...row.node.subarray(0, row.n)], [...row.left.subarray(0, row.n)]]), made: null, picture: null, done: canvas.done.length });
  const before = state();
  assert.ok(flame.top > 0 && before.done > 0);
  flame.rehearse(new Float64Array(shown.tree.n), other);
  assert.deepEqual(state(), before);
  assert.ok(other.done.some(([name]) => name === 'putImageData'), 'it is drawn elsewhere');
});

test('a graph that comes to a screen with other pixels is placed anew', t => {
  inPage(t, 2);
  const flame = drawnFlame(grown(3000, numbers(5)), 100, bareCanvas());
  const rightmost = () => flame.rows[0].right[0];
  assert.equal(rightmost(), 300);
  onScreen(t, 2);
  flame.draw();
  assert.equal(rightmost(), 600);
  assert.equal(flame.canvas.width, 600);
});

test('a callee has no pixel that is not its caller\'s', () => {
  // 5.4 and 4.6 pixels; the first one's callees have 5.05 and 0.35
  const tree = firstTree(Uint32Array.of(0, 1, 2, 2, 1), Uint32Array.of(0, 0, 1, 2, 3), [1, 2, 3, 4]);
  const flame = placed({ tree, totals: tree.totals(Float64Array.of(0, 0, 5050, 350, 4600)) }, 0, 10);
  assert.deepEqual(flame.rows.map(row => [...row.right.subarray(0, row.n)]), [[10], [5, 10], [5]]);
});

test('rows that were used before have nothing of it', () => {
  const random = numbers(11);
  const flame = placed(grown(3000, random), 0, 300);
  const small = grown(5, random);
  Object.assign(flame, small);
  flame.place();
  const fresh = placed(small, 0, 300);
  assert.deepEqual(flame.rows.map(row => [...row.node.subarray(0, row.n)]), fresh.rows.map(row => [...row.node.subarray(0, row.n)]));
  assert.ok(flame.rows.length < flame.made.length);
});
