// What the figures say, in sentences. Each leads to the view that shows it. Pure.
import { levelBefore } from './course.js';
import { bytesText, changeText, durationText, percentText, plural } from './text.js';

// From this share of all allocations on, in so many parts of one, temporary blocks are worth a sentence, and no fewer
// than so many, as for advice.
const CHURN = 0.25;
const LEAST_CHURN = 1000;

// So many points are needed before a course is called growth.
const LEAST_POINTS = 8;

// The site with most in a column: its number, what it has, and what all have.
function largest(column) {
  let [site, most, whole] = [-1, 0, 0];
  column.bytes.forEach((bytes, i) => {
    whole += bytes;
    if (bytes > most) [site, most] = [i, bytes];
  });
  return { site, most, whole };
}

// Whether live bytes rise all the time up to `end`: the least of each quarter of the time is more than that of the one
// before, by a twentieth of the most. `before`: what was live before the first point.
export function grows(timeline, end, before = 0) {
  if (timeline.length < LEAST_POINTS || !(end > 0)) return false;
  const least = [before, Infinity, Infinity, Infinity];
  let [most, level, last] = [before, before, 0];
  // Live bytes stay until an event changes them, so a quarter begins with what the one before has left.
  const enter = quarter => {
    for (; last < quarter; last++) least[last + 1] = Math.min(least[last + 1], level);
  };
  for (const { t_ns, live_bytes } of timeline) {
    const quarter = Math.max(last, Math.min(3, Math.floor(t_ns / end * 4)));
    enter(quarter);
    level = live_bytes;
    least[quarter] = Math.min(least[quarter], level);
    most = Math.max(most, level);
  }
  enter(3);
  return [1, 2, 3].every(quarter => least[quarter] > least[quarter - 1] + most / 20);
}

// The sentences, the most important first. `nameOf` names a site. Each has `kind`, `lead`, `text`, and `to`: the state
// that shows it.
export function sentences(data, nameOf) {
  const { report, words } = data;
  const { totals } = report;
  const column = name => data.columns.find(column => column.name === name);
  const found = [];
  const say = (kind, lead, text, to) => found.push({ kind, lead, text, to });
  const share = name => {
    const { site, most, whole } = largest(column(name));
    if (site < 0) return '';
    return `; ${percentText(most, whole)} of it is one call: ${nameOf(site)}`;
  };
  if (report.verdict) {
    const { result, reasons } = report.verdict;
    const word = result === 'clean' ? 'Clean' : result.replaceAll('_', ' ').replace(/^./, first => first.toUpperCase());
    const text = reasons.length > 0 ? reasons.join('; ') : 'nothing speaks against the program';
    say(result === 'clean' ? 'good' : 'bad', word, text, report.findings.length > 0 ? { view: 'findings' } : { view: 'about' });
  }
  if (column('peak') && totals.peak_bytes > 0) {
    const when = totals.peak_at_ns > 0 ? ` at ${durationText(totals.peak_at_ns)}` : '';
    say('plain', `Peak ${bytesText(totals.peak_bytes)}${when}`, share('peak').slice(2), { view: 'flame', col: 'peak', mode: 'icicle' });
  }
  const { leaks } = report;
  const errors = report.findings.filter(finding => finding.direct === null);
  if (errors.length > 0) say('bad', `${plural(errors.length, 'error')} in the use of the heap`, 'see where', { view: 'findings' });
  if (leaks && !report.verdict) {
    const lost = leaks.definite.bytes + leaks.indirect.bytes;
    if (leaks.definite.blocks > 0) {
      say('bad', `Leaks: ${bytesText(lost)} in ${plural(leaks.definite.blocks + leaks.indirect.blocks, 'block')}`, 'which nothing points to any more', { view: 'findings' });
    } else say('good', 'No leak', 'all live blocks can be reached', { view: 'findings' });
  }
  if (column('live') && totals.allocations + totals.live_blocks > 0) {
    const end = report.exit === null ? 'Live' : 'Live at exit';
    if (totals.live_blocks === 0) say('good', 'Nothing stays', 'every block was freed', { view: 'flame', col: 'live' });
    else {
      const of = totals.peak_bytes > 0 ? `, ${percentText(totals.live_bytes, totals.peak_bytes)} of the peak` : '';
      say('plain', `${end}: ${bytesText(totals.live_bytes)}`, `in ${plural(totals.live_blocks, 'block')}${of}${share('live')}`, { view: 'flame', col: 'live', mode: 'icicle' });
    }
  }
  if (grows(report.timeline, report.duration_ns, levelBefore(totals))) say('warn', 'Growth', 'live bytes rise from each quarter of the time to the next', { view: 'flame', col: 'live' });
  if (column('temporary') && totals.temporary >= LEAST_CHURN && totals.temporary > totals.allocations * CHURN) {
    const text = `${plural(totals.temporary, 'block')} (${percentText(totals.temporary, totals.allocations)}) were freed before their thread's next allocation`;
    say('warn', 'Churn', text, { view: 'table', col: 'temporary', unit: 'blocks', by: 'function' });
  }
  for (const { lead, text, column: col, function: fn } of words.advice) say('warn', lead, text, { view: 'flame', col, mode: 'callers', fn, unit: col === 'temporary' ? 'blocks' : 'bytes' });
  if (column('allocated') && totals.allocations > 0) {
    say('plain', `Allocated ${bytesText(totals.bytes_allocated)}`, `in ${plural(totals.allocations, 'block')}${share('allocated')}`, { view: 'flame', col: 'allocated', mode: 'icicle' });
  }
  if (words.resident) say('plain', 'Resident', words.resident.replace(/^Resident: /, ''), { view: 'about' });
  if (totals.allocations === 0 && totals.live_blocks === 0) say('plain', 'heaptrace saw no allocation', 'the figures below say what it watched', { view: 'about' });
  return found;
}

// What is to be said of a difference, in the same form.
export function differences(data, nameOf) {
  const { value, before, after, unchanged } = data.words.difference;
  const change = after.bytes - before.bytes;
  const share = change !== 0 && before.bytes > 0 ? ` (${change > 0 ? '+' : '−'}${percentText(Math.abs(change), before.bytes)})` : '';
  const told = ({ bytes, objects }) => `${bytesText(bytes)} in ${plural(objects, 'block')}`;
  const kind = change > 0 ? 'warn' : change < 0 ? 'good' : 'plain';
  const lead = change === 0 ? 'No change of the sum' : changeText(change, 'bytes') + share;
  const found = [{ kind, lead, text: `${value}: ${told(before)} before, ${told(after)} after`, to: { view: 'flame', col: 'after', mode: 'icicle' } }];
  for (const [name, title, kind] of [['grown', 'Grown', 'warn'], ['shrunk', 'Shrunk', 'good']]) {
    const { site, most, whole } = largest(data.columns.find(column => column.name === name));
    if (site < 0) continue;
    found.push({ kind, lead: `${title} by ${bytesText(whole)}`, text: `${percentText(most, whole)} of it is one call: ${nameOf(site)}`, to: { view: 'flame', col: name, mode: 'icicle' } });
  }
  if (unchanged > 0) found.push({ kind: 'plain', lead: plural(unchanged, 'stack'), text: 'as before', to: { view: 'table', col: 'after', by: 'site' } });
  return found;
}

// Whether it is known that each event was recorded.
export function isExact({ report }) {
  return report.sampling.interval === 0 && report.anomalies.lost === 0 && report.cost.events > 0;
}

// What speaks against the figures, in a few words.
export function doubts(data) {
  const { report, words } = data;
  const parts = [];
  const { anomalies, sampling } = report;
  if (sampling.interval > 0) parts.push('sampled: all amounts are estimates');
  if (anomalies.lost > 0) parts.push(`${plural(anomalies.lost, 'event')} missed`);
  if (anomalies.truncated_stacks > 0) parts.push(`${plural(anomalies.truncated_stacks, 'stack')} cut off`);
  const slower = /: ([^:]* slower) than without/.exec(words.cost.join(' '));
  if (slower && !slower[1].startsWith('hardly')) parts.push(`the program ran ${slower[1]}`);
  const others = words.anomalies.length - (anomalies.lost > 0) - (anomalies.truncated_stacks > 0);
  if (others > 0) parts.push(plural(others, 'other doubt'));
  if (report.warnings.length > 0) parts.push(plural(report.warnings.length, 'warning'));
  return parts;
}
