// What each test of the program did (`heaptrace check --per-test`).
import { make } from './dom.js';
import { bytesText, countText, durationText, plural } from './text.js';

// So many tests are put into the page at once.
const TESTS_AT_ONCE = 500;

// What has grown since the baseline, in words.
function testGrowth({ grown }) {
  const text = (what, value) => (what === 'allocations' ? countText(value) : bytesText(value));
  return grown.map(({ what, before, after }) => `${what} from ${text(what, before)} to ${text(what, after)}`).join(', ');
}

const testFails = row => row.leaked.objects > 0 || row.grown.length > 0;

// The columns: title, text, and what they are sorted by.
const TEST_COLUMNS = [
  ['Leaked', row => (row.leaked.objects > 0 ? `${bytesText(row.leaked.bytes)} in ${plural(row.leaked.objects, 'block')}` : ''), row => row.leaked.bytes],
  ['Kept', row => bytesText(row.kept.bytes), row => row.kept.bytes],
  ['Peak', row => bytesText(row.peak_bytes), row => row.peak_bytes],
  ['Allocations', row => countText(row.allocated.objects), row => row.allocated.objects],
  ['Runs', row => countText(row.runs), row => row.runs],
  ['Time', row => durationText(row.duration_ns), row => row.duration_ns],
];

// The rows in the order of a column, the largest first; those that fail come first where none was chosen.
export function sortedTests(rows, column) {
  const by = TEST_COLUMNS[column]?.[2];
  const order = by ? (a, b) => by(b) - by(a) : (a, b) => testFails(b) - testFails(a) || b.leaked.bytes - a.leaked.bytes || b.peak_bytes - a.peak_bytes;
  return [...rows].sort(order);
}

// Fills the view.
export function showTests(element, data) {
  const { rows, outside_leaked, unassigned } = data.report.tests;
  const body = make('tbody', {});
  const line = row => {
    const growth = testGrowth(row);
    const name = make('th', { scope: 'row' }, make('span', { class: testFails(row) ? 'bad fn' : 'fn' }, row.name), growth === '' ? null : make('div', { class: 'note' }, `grown: ${growth}`));
    return make('tr', {}, name, ...TEST_COLUMNS.map(([, text]) => make('td', { class: 'number' }, text(row))));
  };
  const fill = (sorted, from) => {
    const rest = sorted.length - from - TESTS_AT_ONCE;
    body.append(...sorted.slice(from, from + TESTS_AT_ONCE).map(line));
    if (rest <= 0) return;
    const more = make('tr', {}, make('td', {}, make('button', { type: 'button', onclick: () => more.remove() || fill(sorted, from + TESTS_AT_ONCE) }, `${countText(rest)} more`)));
    body.append(more);
  };
  const show = column => {
    body.replaceChildren();
    fill(sortedTests(rows, column), 0);
  };
  const heading = ([title], column) => make('th', { scope: 'col', class: 'number' }, make('button', { type: 'button', class: 'link', onclick: () => show(column) }, title));
  const head = make('thead', {}, make('tr', {}, make('th', { scope: 'col' }, 'Test'), ...TEST_COLUMNS.map(heading)));
  const amount = ({ bytes, objects }) => `${bytesText(bytes)} in ${plural(objects, 'block')}`;
  show(-1);
  element.replaceChildren(
    make('table', { class: 'small', 'aria-label': 'Tests' }, head, body),
    ...(outside_leaked.objects > 0 ? [make('p', {}, `Leaked outside of tests: ${amount(outside_leaked)}.`)] : []),
    ...(unassigned.objects > 0 ? [make('p', {}, `${amount(unassigned)} were allocated while tests ran by threads that none of them has made.`)] : []),
    make('p', { class: 'note' }, 'Leaked: allocated in the test, and lost when the program ended. Kept: live when the test ended. Peak: the most bytes of its own blocks that were live at one moment of it.'));
}
