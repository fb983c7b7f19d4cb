// The course of live bytes and allocations between the points that a report has of it. Pure.

// What was live when recording began: what the end has, without what came and went since.
export function levelBefore({ live_bytes, bytes_allocated, bytes_freed }) {
  return Math.max(0, live_bytes - bytes_allocated + bytes_freed);
}

// The state at a moment: that of the last point until then. Between two points nothing changes.
function stateAt(timeline, time, before) {
  let last = { live_bytes: before, allocations: 0 };
  for (const point of timeline) {
    if (point.t_ns > time) break;
    last = point;
  }
  return last;
}

// What changed within a window of `timeline`, and the most live bytes there; `before`: what was live before its first
// point.
export function windowOf(timeline, from, to, before = 0) {
  const [first, last] = [from, to].map(time => stateAt(timeline, time, before));
  let most = first.live_bytes;
  for (const point of timeline) {
    if (point.t_ns >= from && point.t_ns <= to) most = Math.max(most, point.live_bytes);
  }
  return { change: last.live_bytes - first.live_bytes, allocations: last.allocations - first.allocations, most };
}

// The corners of the line of live bytes from 0 to `end`, [time, bytes] each: live bytes stay until an event changes
// them.
export function cornersOf(timeline, end, before) {
  const corners = [[0, before]];
  let level = before;
  for (const { t_ns, live_bytes } of timeline) {
    corners.push([t_ns, level], [t_ns, live_bytes]);
    level = live_bytes;
  }
  corners.push([Math.max(end, timeline[timeline.length - 1]?.t_ns ?? 0), level]);
  return corners;
}

// Allocations per second in so many equal parts of the time up to `end`. The allocations of a point came since the
// point before it, and no earlier than `reach` before it, in nanoseconds: in that time they are taken as even.
export function ratesOf(timeline, end, parts, reach) {
  const rates = new Float64Array(parts);
  const width = end / parts;
  let before = { t_ns: 0, allocations: 0 };
  for (const point of timeline) {
    const to = Math.max(point.t_ns, before.t_ns);
    const from = Math.max(before.t_ns, to - reach);
    const count = point.allocations - before.allocations;
    const [first, last] = [from, to].map(time => Math.max(0, Math.min(parts - 1, Math.floor(time / width))));
    for (let part = first; part <= last; part++) {
      const share = to > from ? Math.max(0, Math.min(to, (part + 1) * width) - Math.max(from, part * width)) / (to - from) : 1 / (last - first + 1);
      rates[part] += count * share / width * 1e9;
    }
    before = point;
  }
  return rates;
}

// How long before a point of `timeline` its allocations can have come, in nanoseconds. A recording keeps two points of
// each interval in which anything happened: an interval takes about a microsecond, until there are 512; then it takes
// twice as long, again and again, so that at least 256 are left. Of the sum of several processes, where it was thinned
// out by the number of points, that is not known.
export function reachOf(timeline, end, processes = 1) {
  if (processes > 1 && timeline.length > 512) return Infinity;
  return timeline.length < 256 ? Math.min(1024, end) : end / 255;
}
