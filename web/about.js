// Sizes and lifetimes, and what is to be known of the figures: cost, doubts, warnings.
import { make } from './dom.js';
import { isExact } from './words.js';
import { bytesText, countText, durationText, percentText, plural } from './text.js';

// A table with bars of a histogram whose bucket 0 counts the value 0, bucket i the values from 2^(i-1) to 2^i - 1.
function histogram(title, note, buckets, valueText) {
  const whole = buckets.reduce((sum, count) => sum + count, 0);
  const most = Math.max(1, ...buckets);
  const used = buckets.map((count, i) => [count, i]).filter(([count]) => count > 0);
  if (used.length === 0) return make('section', {}, make('h3', {}, title), make('p', { class: 'none' }, 'Not known.'));
  const [first, last] = [used[0][1], used[used.length - 1][1]];
  const rows = [];
  for (let i = first; i <= last; i++) {
    const count = buckets[i] ?? 0;
    const range = i === 0 ? valueText(0) : i === 1 ? valueText(1) : `${valueText(2 ** (i - 1))} – ${valueText(2 ** i - 1)}`;
    const bar = make('span', { class: 'bar', style: `width:${(count / most * 100).toFixed(2)}%` });
    rows.push(make('tr', {}, make('th', { scope: 'row' }, range), make('td', { class: 'bars', 'aria-hidden': 'true' }, bar), make('td', { class: 'number' }, countText(count)), make('td', { class: 'number' }, percentText(count, whole))));
  }
  return make('section', {}, make('h3', {}, title), make('p', { class: 'note' }, note), make('table', { class: 'histogram' }, make('tbody', {}, ...rows)));
}

export function showSizes(element, data) {
  const { size, lifetime } = data.report.histograms;
  const bytes = value => (value < 1024 ? `${value} B` : bytesText(value).replace('.00', ''));
  element.replaceChildren(
    histogram('Sizes of blocks', 'One count for each allocation.', size, bytes),
    histogram('Lifetimes', 'How many allocations the program made between a block’s own and its free; one count for each block that was freed.', lifetime, countText));
}

export function showAbout(element, data) {
  const { report, words } = data;
  const part = (title, lines) => (lines.length > 0 ? make('section', {}, make('h3', {}, title), ...lines.map(line => make('p', {}, line.replace(/^[a-z]/, first => first.toUpperCase())))) : null);
  const { sampling, totals } = report;
  const exactness = sampling.interval > 0
    ? [`Sampled, one byte in ${bytesText(sampling.interval)} on average: all amounts are estimates. The standard error of the allocated bytes is ${bytesText(sampling.standard_error)} (${percentText(sampling.standard_error, totals.bytes_allocated)}).`]
    : isExact(data) ? ['Every allocation and free was recorded: the amounts are exact.']
      : report.anomalies.lost > 0 ? ['Not sampled, but some events were missed: see below.'] : ['This file does not say how it was recorded.'];
  if (words.attached) exactness.push('heaptrace attached to the process: the stacks of blocks from before are not known.');
  const doubts = words.anomalies.map(({ count, label, meaning }) => make('tr', {}, make('td', { class: 'number' }, countText(count)), make('th', { scope: 'row' }, label), make('td', {}, meaning)));
  const noDoubts = [make('p', {}, 'Nothing: no event was missed, no stack was cut off.')];
  const facts = [
    ['Command', report.command.join(' ')], ['In', report.cwd], ['Began', report.started_at], ['Duration', durationText(report.duration_ns)], ['Process', String(report.pid)],
    ['Allocations', `${countText(totals.allocations)}, ${bytesText(totals.bytes_allocated)}`], ['Frees', `${countText(totals.frees)}, ${bytesText(totals.bytes_freed)}`],
    ['Reallocations', countText(totals.reallocations)], ['Failed', countText(totals.failed)],
    ['Allocators', report.allocators.map(({ module, functions }) => `${module}: ${functions.join(', ')}`).join('; ')], ['Written by', `heaptrace ${report.heaptrace_version}`],
  ].filter(([, value]) => value !== '');
  const others = report.processes.map(({ pid, program, totals: own }) => make('tr', {}, make('td', { class: 'number' }, String(pid)), make('th', { scope: 'row' }, program), make('td', { class: 'number' }, `${bytesText(own.peak_bytes)} at the peak`), make('td', { class: 'number' }, plural(own.allocations, 'allocation'))));
  const sections = [
    part('How exact', exactness),
    make('section', { id: 'doubts' }, make('h3', {}, 'Not seen, or not certain'), ...(doubts.length > 0 ? [make('table', { class: 'small' }, make('tbody', {}, ...doubts))] : noDoubts)),
    part('What tracing cost', words.cost),
    part('Warnings', report.warnings),
    words.unnamed.length > 0 ? make('section', {}, make('h3', {}, 'Places without names'), make('pre', {}, words.unnamed.join('\n'))) : null,
    words.resident ? part('Resident memory', [words.resident]) : null,
    others.length > 0 ? make('section', {}, make('h3', {}, 'Processes'), make('table', { class: 'small' }, make('tbody', {}, ...others))) : null,
    make('section', {}, make('h3', {}, 'The run'), make('table', { class: 'small facts' }, make('tbody', {}, ...facts.map(([name, value]) => make('tr', {}, make('th', { scope: 'row' }, name), make('td', {}, value)))))),
  ];
  element.replaceChildren(...sections.filter(section => section !== null));
}
