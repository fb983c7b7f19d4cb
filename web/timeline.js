// Live bytes over time, with the resident memory and the rate of allocations where they are known. A part of it can be brushed.
import { sharpen, themeColor } from './dom.js';
import { bytesText, countText, durationText } from './text.js';

const COURSE_HEIGHT = 132;
const LEFT = 74;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 22;

// A step for about `count` marks up to `most`: one, two or five times a power of `base`'s kind.
export function niceStep(most, count, isBytes) {
  if (!(most > 0)) return 1;
  const raw = most / count;
  const base = isBytes ? 2 : 10;
  const power = base ** Math.floor(Math.log(raw) / Math.log(base));
  if (isBytes) return power < raw ? power * 2 : power;
  const times = [1, 2, 5, 10].find(times => times * power >= raw);
  return times * power;
}

// The points of `timeline` within a window, with the values at its ends; what changed there.
export function windowOf(timeline, from, to) {
  const at = time => {
    let last = timeline[0];
    for (const point of timeline) {
      if (point.t_ns > time) break;
      last = point;
    }
    return last;
  };
  const [first, last] = [at(from), at(to)];
  let most = Math.max(first.live_bytes, last.live_bytes);
  for (const point of timeline) {
    if (point.t_ns >= from && point.t_ns <= to) most = Math.max(most, point.live_bytes);
  }
  return { change: last.live_bytes - first.live_bytes, allocations: last.allocations - first.allocations, most };
}

export class Timeline {
  // `on.window(from, to)` is called when a part was brushed; (-1, -1): all.
  constructor(canvas, data, tip, on) {
    Object.assign(this, { canvas, tip, on });
    const { report, words } = data;
    this.points = report.timeline;
    this.resident = words.resident_course;
    this.peak = report.totals.peak_at_ns > 0 && report.processes.length < 2 ? report.totals.peak_at_ns : -1;
    const last = list => (list.length > 0 ? list[list.length - 1] : null);
    this.end = Math.max(report.duration_ns, last(this.points)?.t_ns ?? 0, last(this.resident)?.[0] ?? 0, 1);
    this.most = Math.max(1, report.totals.peak_bytes, ...this.points.map(point => point.live_bytes), ...this.resident.map(point => point[1]));
    [this.from, this.to] = [-1, -1];
    this.drag = null;
    canvas.addEventListener('pointerdown', event => {
      canvas.setPointerCapture(event.pointerId);
      this.drag = this.timeAt(event.offsetX);
      tip.hide();
    });
    canvas.addEventListener('pointermove', event => this.moved(event));
    canvas.addEventListener('pointerup', event => this.released(event));
    canvas.addEventListener('pointerleave', () => tip.hide());
    canvas.addEventListener('keydown', event => this.key(event));
    const text = `Live bytes over ${durationText(this.end)}, ${bytesText(this.most)} at most. Drag to choose a part of the time; with the keys: arrows move it, shift and arrows change its length, Escape shows all.`;
    canvas.setAttribute('aria-label', text);
  }

  get width() {
    return this.canvas.clientWidth;
  }

  x(time) {
    return LEFT + time / this.end * (this.width - LEFT - RIGHT);
  }

  y(bytes) {
    return TOP + (1 - bytes / this.most) * (COURSE_HEIGHT - TOP - BOTTOM);
  }

  timeAt(x) {
    const share = (x - LEFT) / Math.max(1, this.width - LEFT - RIGHT);
    return Math.round(Math.max(0, Math.min(1, share)) * this.end);
  }

  show(from, to) {
    [this.from, this.to] = [from, to];
    this.draw();
  }

  draw() {
    const { points, resident, width } = this;
    const context = sharpen(this.canvas, width, COURSE_HEIGHT);
    const color = name => themeColor(name);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    const floor = COURSE_HEIGHT - BOTTOM;
    context.textAlign = 'right';
    const step = niceStep(this.most, 3, true);
    for (let bytes = 0; bytes <= this.most; bytes += step) {
      const y = Math.round(this.y(bytes)) + 0.5;
      context.fillStyle = color('--line');
      context.fillRect(LEFT, y, width - LEFT - RIGHT, 1);
      context.fillStyle = color('--faint');
      context.fillText(bytesText(bytes).replace('.00', ''), LEFT - 8, y);
    }
    context.textAlign = 'center';
    const seconds = niceStep(this.end, Math.max(2, Math.floor(width / 160)), false);
    for (let time = 0; time <= this.end * 1.0001; time += seconds) {
      context.fillText(durationText(Math.round(time)).replace(/\.0+ /, ' ').replace(/(\.\d*?)0+ /, '$1 '), Math.min(this.x(time), width - RIGHT - 16), COURSE_HEIGHT - 9);
    }
    if (resident.length > 1) {
      context.strokeStyle = color('--resident');
      context.setLineDash([4, 3]);
      context.beginPath();
      resident.forEach(([time, bytes], i) => (i === 0 ? context.moveTo(this.x(time), this.y(bytes)) : context.lineTo(this.x(time), this.y(bytes))));
      context.stroke();
      context.setLineDash([]);
    }
    if (points.length > 0) {
      context.beginPath();
      context.moveTo(this.x(points[0].t_ns), floor);
      for (const { t_ns, live_bytes } of points) context.lineTo(this.x(t_ns), this.y(live_bytes));
      context.lineTo(this.x(points[points.length - 1].t_ns), floor);
      context.fillStyle = color('--area');
      context.fill();
      context.beginPath();
      points.forEach(({ t_ns, live_bytes }, i) => (i === 0 ? context.moveTo(this.x(t_ns), this.y(live_bytes)) : context.lineTo(this.x(t_ns), this.y(live_bytes))));
      context.strokeStyle = color('--accent');
      context.lineWidth = 1.5;
      context.stroke();
      context.lineWidth = 1;
    }
    if (this.peak >= 0) {
      const x = Math.round(this.x(this.peak)) + 0.5;
      context.fillStyle = color('--ink');
      context.fillRect(x, TOP, 1, floor - TOP);
      context.textAlign = x > width - 90 ? 'right' : 'left';
      const at = x + (x > width - 90 ? -5 : 6);
      context.strokeStyle = color('--paper');
      context.lineWidth = 4;
      context.strokeText('peak', at, TOP + 5);
      context.lineWidth = 1;
      context.fillText('peak', at, TOP + 5);
    }
    if (this.from >= 0) {
      const [left, right] = [this.x(this.from), this.x(this.to)];
      context.fillStyle = color('--veil');
      context.fillRect(LEFT, TOP, left - LEFT, floor - TOP);
      context.fillRect(right, TOP, width - RIGHT - right, floor - TOP);
      context.fillStyle = color('--accent');
      context.fillRect(left - 0.5, TOP, 1.5, floor - TOP);
      context.fillRect(right - 0.5, TOP, 1.5, floor - TOP);
    }
  }

  moved(event) {
    const time = this.timeAt(event.offsetX);
    if (this.drag !== null) {
      [this.from, this.to] = [Math.min(this.drag, time), Math.max(this.drag, time)];
      this.draw();
      return;
    }
    if (this.points.length === 0) return;
    const { most } = windowOf(this.points, time, time);
    this.tip.show(event.clientX, event.clientY, `${durationText(time)}: ${bytesText(most)} live`);
  }

  released(event) {
    if (this.drag === null) return;
    const [drag, time] = [this.drag, this.timeAt(event.offsetX)];
    this.drag = null;
    const isClick = Math.abs(this.x(drag) - this.x(time)) < 4;
    if (isClick) this.on.window(-1, -1);
    else this.on.window(Math.min(drag, time), Math.max(drag, time));
  }

  key(event) {
    const step = Math.round(this.end / 50);
    let [from, to] = this.from < 0 ? [0, this.end] : [this.from, this.to];
    if (event.key === 'Escape') return this.on.window(-1, -1);
    const sign = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (sign === undefined) return undefined;
    event.preventDefault();
    if (event.shiftKey || this.from < 0) to = Math.max(from + step, Math.min(this.end, to + sign * step));
    else {
      const moved = Math.max(-from, Math.min(this.end - to, sign * step));
      [from, to] = [from + moved, to + moved];
    }
    return this.on.window(from, to);
  }
}

// What happened in a window, in words.
export function windowText(points, from, to) {
  const { change, allocations, most } = windowOf(points, from, to);
  const sign = change < 0 ? '−' : '+';
  return `${durationText(from)} – ${durationText(to)}: live ${sign}${bytesText(Math.abs(change))}, ${countText(allocations)} allocations, ${bytesText(most)} at most`;
}
