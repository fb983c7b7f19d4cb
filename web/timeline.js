// Live bytes over time, with the rate of allocations, and the resident memory, marks and moments of known heaps where
// there are such. A part of it can be brushed.
import { cornersOf, levelBefore, ratesOf, reachOf, windowOf } from './course.js';
import { sharpen, themeColor } from './dom.js';
import { bytesText, countText, durationText } from './text.js';

const COURSE_HEIGHT = 178;
const LEFT = 74;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 22;

// The lane of the allocation rate below the bytes, and what is between them.
const LANE = 30;
const GAP = 12;

// So wide is a bar of the rate, in CSS pixels.
const BAR = 3;

// Where no bytes are.
const FLOOR = COURSE_HEIGHT - BOTTOM - LANE - GAP;

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

// `12.3 k` for 12,345.
export function shortCount(count) {
  const unit = [[1e9, 'G'], [1e6, 'M'], [1e3, 'k']].find(([size]) => count >= size);
  return unit === undefined ? String(Math.round(count)) : `${Number((count / unit[0]).toPrecision(3))} ${unit[1]}`;
}

export class Timeline {
  // `on.window(from, to)` is called when a part was brushed; (-1, -1): all.
  constructor(canvas, data, tip, on) {
    Object.assign(this, { canvas, tip, on });
    const { report, words } = data;
    this.points = report.timeline;
    this.before = levelBefore(report.totals);
    this.resident = words.resident_course;
    this.marks = words.marks.map(([time, name]) => ({ time, name }));
    // Moments whose heap the file knows; the last one is the end.
    this.moments = data.heaps.slice(0, -1).map(({ t }) => t);
    this.peak = report.totals.peak_at_ns > 0 && report.processes.length < 2 ? report.totals.peak_at_ns : -1;
    const last = list => (list.length > 0 ? list[list.length - 1] : null);
    this.end = Math.max(report.duration_ns, last(this.points)?.t_ns ?? 0, last(this.resident)?.[0] ?? 0, 1);
    // What lives at the end lives as long as was recorded.
    this.corners = cornersOf(this.points, report.duration_ns, this.before);
    this.reach = reachOf(this.points, this.end, report.processes.length);
    this.most = Math.max(1, report.totals.peak_bytes, this.before, ...this.points.map(point => point.live_bytes), ...this.resident.map(point => point[1]));
    // What was chosen, and what is brushed at the moment; null: nothing.
    [this.from, this.to] = [-1, -1];
    this.brush = null;
    // Not known, until it is asked for again.
    this.width = 0;
    addEventListener('resize', () => { this.width = 0; });
    this.drag = null;
    canvas.addEventListener('pointerdown', event => {
      canvas.setPointerCapture(event.pointerId);
      this.drag = this.timeAt(event.offsetX);
      tip.hide();
    });
    canvas.addEventListener('pointermove', event => this.moved(event));
    canvas.addEventListener('pointerup', event => this.released(event));
    canvas.addEventListener('pointercancel', () => this.cancelled());
    canvas.addEventListener('pointerleave', () => tip.hide());
    canvas.addEventListener('keydown', event => this.key(event));
    const text = `Live bytes over ${durationText(this.end)}, ${bytesText(this.most)} at most. Drag to choose a part of the time; with the keys: arrows move it, shift and arrows change its length, Escape shows all.`;
    canvas.setAttribute('aria-label', text);
  }

  x(time) {
    return LEFT + time / this.end * (this.width - LEFT - RIGHT);
  }

  y(bytes) {
    return TOP + (1 - bytes / this.most) * (FLOOR - TOP);
  }

  timeAt(x) {
    const share = (x - LEFT) / Math.max(1, this.width - LEFT - RIGHT);
    return Math.round(Math.max(0, Math.min(1, share)) * this.end);
  }

  // Whether something has changed. `look` is another one for other colours.
  show(from, to, look) {
    if (this.width === 0) this.width = this.canvas.clientWidth;
    const shown = `${from} ${to} ${this.width} ${look}`;
    if (shown === this.shown) return false;
    Object.assign(this, { from, to, shown });
    this.draw();
    return true;
  }

  draw() {
    const { resident, width } = this;
    const context = sharpen(this.canvas, width, COURSE_HEIGHT);
    const color = name => themeColor(name);
    context.font = '11px system-ui, sans-serif';
    context.textBaseline = 'middle';
    const floor = COURSE_HEIGHT - BOTTOM;
    this.drawRate(context);
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
    const { corners } = this;
    context.beginPath();
    context.moveTo(this.x(corners[0][0]), FLOOR);
    for (const [time, bytes] of corners) context.lineTo(this.x(time), this.y(bytes));
    context.lineTo(this.x(corners[corners.length - 1][0]), FLOOR);
    context.fillStyle = color('--area');
    context.fill();
    context.beginPath();
    corners.forEach(([time, bytes], i) => (i === 0 ? context.moveTo(this.x(time), this.y(bytes)) : context.lineTo(this.x(time), this.y(bytes))));
    context.strokeStyle = color('--accent');
    context.lineWidth = 1.5;
    context.stroke();
    context.lineWidth = 1;
    context.fillStyle = color('--faint');
    for (const time of this.moments) context.fillRect(Math.round(this.x(time)), FLOOR, 1, 5);
    let room = -Infinity;
    for (const { time, name } of this.marks) {
      const isFree = this.x(time) > room;
      this.drawMoment(context, time, isFree ? name : '', TOP + 18, '--mark-line');
      if (isFree) room = this.x(time) + context.measureText(name).width + 14;
    }
    if (this.peak >= 0) this.drawMoment(context, this.peak, 'peak', TOP + 5, '--ink');
    const [from, to] = this.brush ?? [this.from, this.to];
    if (from >= 0) {
      const [left, right] = [this.x(from), this.x(to)];
      context.fillStyle = color('--veil');
      context.fillRect(LEFT, TOP, left - LEFT, floor - TOP);
      context.fillRect(right, TOP, width - RIGHT - right, floor - TOP);
      context.fillStyle = color('--accent');
      context.fillRect(left - 0.5, TOP, 1.5, floor - TOP);
      context.fillRect(right - 0.5, TOP, 1.5, floor - TOP);
    }
  }

  // A line at a moment, with what it is.
  drawMoment(context, time, name, y, color) {
    const { width } = this;
    const x = Math.round(this.x(time)) + 0.5;
    context.fillStyle = themeColor(color);
    context.fillRect(x, TOP, 1, FLOOR - TOP);
    const isRight = x > width - 30 - context.measureText(name).width;
    context.textAlign = isRight ? 'right' : 'left';
    const at = x + (isRight ? -5 : 6);
    context.strokeStyle = themeColor('--paper');
    context.lineWidth = 4;
    context.strokeText(name, at, y);
    context.lineWidth = 1;
    context.fillText(name, at, y);
  }

  // The lane with the rate of allocations.
  drawRate(context) {
    const room = this.width - LEFT - RIGHT;
    const rates = ratesOf(this.points, this.end, Math.max(1, Math.floor(room / BAR)), this.reach);
    const most = rates.reduce((most, rate) => Math.max(most, rate), 0);
    if (!(most > 0)) return;
    const base = COURSE_HEIGHT - BOTTOM;
    context.fillStyle = themeColor('--line');
    context.fillRect(LEFT, base, room, 1);
    context.fillStyle = themeColor('--rate');
    rates.forEach((rate, part) => {
      const height = rate > 0 ? Math.max(1, rate / most * LANE) : 0;
      context.fillRect(LEFT + part * room / rates.length, base - height, room / rates.length - 0.5, height);
    });
    context.fillStyle = themeColor('--faint');
    context.textAlign = 'right';
    context.fillText(`${shortCount(most)}/s`, LEFT - 8, base - LANE + 5);
    context.fillText('allocs', LEFT - 8, base - 6);
    this.rates = rates;
  }

  // What is told of a moment: live bytes, the resident memory, the rate, and the mark next to it.
  tellMoment(x) {
    const time = this.timeAt(x);
    const { most } = windowOf(this.points, time, time, this.before);
    const parts = [`${durationText(time)}: ${bytesText(most)} live`];
    const resident = this.resident[this.resident.filter(([at]) => at <= time).length - 1];
    if (resident) parts.push(`${bytesText(resident[1])} resident`);
    if (this.rates) parts.push(`${shortCount(this.rates[Math.min(this.rates.length - 1, Math.floor(time / this.end * this.rates.length))])} allocations/s`);
    const near = this.marks.filter(mark => Math.abs(this.x(mark.time) - x) < 5).map(({ name }) => `mark ${name}`);
    if (this.moments.some(moment => Math.abs(this.x(moment) - x) < 2)) near.push('a moment whose heap is known');
    return [parts.join(', '), ...near].join(' · ');
  }

  moved(event) {
    const time = this.timeAt(event.offsetX);
    if (this.drag !== null) {
      this.brush = [Math.min(this.drag, time), Math.max(this.drag, time)];
      this.draw();
      return;
    }
    if (this.points.length === 0) return;
    this.tip.show(event.clientX, event.clientY, this.tellMoment(event.offsetX));
  }

  released(event) {
    if (this.drag === null) return;
    const [drag, time] = [this.drag, this.timeAt(event.offsetX)];
    this.leave();
    const isClick = Math.abs(this.x(drag) - this.x(time)) < 4;
    if (isClick) this.on.window(-1, -1);
    else this.on.window(Math.min(drag, time), Math.max(drag, time));
  }

  // The browser has taken the pointer away: what was chosen stays.
  cancelled() {
    if (this.drag === null) return;
    this.leave();
    this.draw();
  }

  // Leaves the brushing. What it has drawn has to be drawn over, also where nothing else is chosen.
  leave() {
    Object.assign(this, { drag: null, brush: null, shown: null });
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
export function windowText(points, from, to, before) {
  const { change, allocations, most } = windowOf(points, from, to, before);
  const sign = change < 0 ? '−' : '+';
  return `${durationText(from)} – ${durationText(to)}: live ${sign}${bytesText(Math.abs(change))}, ${countText(allocations)} allocations, ${bytesText(most)} at most`;
}
