// The table: real rows, of which only those in sight are in the page.
import { make } from './dom.js';
import { amountText, bytesText, changeText, countText, durationText, percentText, shortPath } from './text.js';

const ROW_HEIGHT = 26;

// Rows beyond both ends of what is in sight.
const SPARE = 3;

// The first of `count` rows to be in the page, of `total`, where the scroll is at `top`. It stays the one it is,
// `before`, as long as that has spare rows: not at the ends, which have none.
export function firstRow(top, total, count, before) {
  const last = Math.max(0, total - count);
  const first = Math.max(0, Math.min(Math.floor(top / ROW_HEIGHT) - SPARE, last));
  const isEnd = first === 0 || first === last;
  return !isEnd && Math.abs(first - before) < SPARE ? before : first;
}

export class Table {
  // `on.sort(column)` is called for a click on a heading, `on.open(row)` for one on a row.
  constructor(scroll, table, on) {
    Object.assign(this, { scroll, table, on });
    this.rows = null;
    this.order = [];
    this.columns = [];
    this.first = -1;
    // Where the scroll is, and how high. Asking for these makes the browser lay the page out.
    [this.top, this.room] = [0, 0];
    scroll.addEventListener('scroll', () => {
      this.top = scroll.scrollTop;
      this.fill(false);
    });
    scroll.tabIndex = 0;
    // Elements of rows, the first one in sight first. They are used again and again, as are the bodies of tables with
    // the same columns.
    this.elements = [];
    this.bodies = new Map();
    table.tBodies[0].addEventListener('click', event => {
      const at = this.elements.indexOf(event.target.closest('tr'));
      if (at >= 0) on.open(this.rows.at(this.order[this.first + at]));
    });
  }

  // The columns of such rows in this unit; `isDifference`: of a page that compares; `hasLifetimes`: it is known for how
  // long blocks lived.
  static columns(by, unit, isDifference = false, hasLifetimes = false) {
    const amount = value => amountText(value, unit);
    const number = (key, title, text, hint) => ({ key, title, text, hint, isNumber: true });
    const columns = [
      number('self', by === 'site' ? 'Bytes' : 'Itself', amount, 'What was allocated there, without what is further inside'),
      { ...number('selfShare', '', text => text, ''), share: 'self' },
      number('total', 'Total', amount, 'What all stacks through it have; each counts once'),
      { ...number('totalShare', '', text => text, ''), share: 'total' },
    ];
    const others = isDifference ? [
      number('before', 'Before', amount, 'What all stacks through it had in the earlier profile'),
      number('after', 'After', amount, 'What they have in the later one'),
      number('change', 'Change', value => changeText(value, unit), 'By how much that is more, or less'),
    ] : [
      number('blocks', 'Blocks', countText, 'Blocks of what is itself'),
      number('mean', 'Mean allocated', value => (Number.isNaN(value) ? '–' : bytesText(value)), 'Of all blocks allocated there'),
      number('temporary', 'Temporary', value => (Number.isNaN(value) ? '–' : percentText(value, 1)), 'The share of all blocks allocated there that were freed before their thread’s next allocation'),
      ...(hasLifetimes && by !== 'thread' ? [number('lifetime', 'Lifetime', value => (Number.isNaN(value) ? '–' : durationText(Math.round(value * 1e9))), 'From allocation to free, on average, in seconds: of the blocks that were freed. Those that are live do not count')] : []),
    ];
    const isWhole = by === 'thread' || by === 'type' || by === 'site';
    const kept = [...columns.filter(column => !isWhole || !column.key.startsWith('total')), ...others];
    if (isWhole && unit === 'blocks') kept[0].title = 'Blocks';
    else if (isWhole) kept[0].title = 'Bytes';
    const title = { function: 'Function', file: 'File', module: 'Module', thread: 'Thread', type: 'Type', site: 'Allocated by' }[by];
    kept.push({ key: 'name', title, text: name => name, isNumber: false });
    if (by === 'site') kept.push({ key: 'type', title: 'Type', text: name => name, isNumber: false });
    if (by === 'function' || by === 'site') kept.push({ key: 'place', title: 'Where', text: shortPath, isNumber: false });
    return kept;
  }

  // The column to sort by that `sort` names.
  static sortable(columns, sort) {
    const column = { selfShare: 'self', totalShare: 'total' }[sort] ?? sort;
    return columns.some(({ key }) => key === column) ? column : 'self';
  }

  // Shows those of `rows` (sums.js) whose numbers `order` has.
  show(rows, order, columns, sort, down) {
    const isOther = columns.length !== this.columns.length || columns.some(({ key }, i) => key !== this.columns[i].key);
    // How texts are written may differ where the head does not.
    Object.assign(this, { rows, order, columns });
    const known = Table.sortable(columns, sort);
    const heading = JSON.stringify([columns, known, down]);
    if (heading !== this.heading) {
      this.heading = heading;
      this.table.tHead.replaceChildren(this.head(known, down));
    }
    if (isOther) this.build();
    this.table.setAttribute('aria-rowcount', order.length + 1);
    this.layOut();
    this.fill(true);
  }

  head(known, down) {
    const cells = this.columns.map(({ key, title, hint, isNumber }) => {
      const order = key === known ? (down ? 'descending' : 'ascending') : 'none';
      if (title === '') return make('th', { scope: 'col', class: 'number share' });
      const mark = order === 'none' ? '' : down ? ' ↓' : ' ↑';
      const button = make('button', { type: 'button', title: hint, onclick: () => this.on.sort(key) }, title + mark);
      return make('th', { scope: 'col', class: isNumber ? 'number' : key, 'aria-sort': order, 'data-key': key }, button);
    });
    return make('tr', {}, ...cells);
  }

  layOut() {
    const room = Math.max(240, Math.min((this.order.length + 1) * ROW_HEIGHT + 14, innerHeight - 200));
    if (room !== this.room) this.scroll.style.height = `${room}px`;
    this.room = room;
  }

  // The body of these columns, as it was left: what stands for rows above and below, what is said if there are none,
  // and elements of rows.
  build() {
    const key = this.columns.map(column => column.key).join(' ');
    if (!this.bodies.has(key)) this.bodies.set(key, this.body());
    Object.assign(this, this.bodies.get(key));
    const [above, below] = this.spaces;
    this.table.tBodies[0].replaceChildren(above, ...this.elements, below, this.none);
  }

  body() {
    const space = () => make('tr', { class: 'space', 'aria-hidden': 'true' }, make('td', { colspan: this.columns.length }));
    const none = make('tr', {}, make('td', { colspan: this.columns.length, class: 'none' }, 'Nothing in this column.'));
    return { spaces: [space(), space()], none, elements: [] };
  }

  // Puts the rows in sight into the page.
  fill(isNew) {
    const { rows, order, spaces, elements } = this;
    if (rows === null) return;
    const count = Math.ceil(this.room / ROW_HEIGHT) + 2 * SPARE;
    const first = firstRow(this.top, order.length, count, isNew ? -Infinity : this.first);
    if (first === this.first && !isNew) return;
    this.first = first;
    const shown = Math.min(count, order.length - first);
    while (elements.length < shown) elements.push(this.element());
    elements.forEach((element, i) => {
      element.className = i < shown ? '' : 'off';
      if (i < shown) this.write(element, first + i);
    });
    [first, order.length - first - shown].forEach((hidden, i) => {
      spaces[i].hidden = hidden === 0;
      spaces[i].firstChild.style.height = `${hidden * ROW_HEIGHT}px`;
    });
    this.none.hidden = order.length > 0;
  }

  element() {
    const cells = this.columns.map(({ key, isNumber }) => make('td', { class: isNumber ? 'number' : key }, ''));
    const element = make('tr', {}, ...cells);
    this.spaces[1].before(element);
    return element;
  }

  // Writes the `i`th row in the order.
  write(element, i) {
    const { rows } = this;
    const row = this.order[i];
    element.setAttribute('aria-rowindex', i + 2);
    this.columns.forEach(({ key, text, share, isNumber }, at) => {
      const value = share ? percentText(rows.values[share][row], rows.whole) : isNumber ? rows.values[key][row] : rows.text(key, row);
      const cell = element.children[at];
      if (!isNumber) cell.title = value;
      const told = text(value);
      if (cell.textContent !== told) cell.textContent = told;
    });
  }
}
