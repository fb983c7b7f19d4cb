// The table: real rows, of which only those in sight are in the page.
import { make } from './dom.js';
import { amountText, bytesText, countText, percentText, shortPath } from './text.js';
import { sorted } from './sums.js';

const ROW_HEIGHT = 26;

// Rows beyond both ends of what is in sight.
const SPARE = 8;

export class Table {
  // `on.sort(column)` is called for a click on a heading, `on.open(row)` for one on a row.
  constructor(scroll, table, on) {
    Object.assign(this, { scroll, table, on });
    this.rows = [];
    this.columns = [];
    this.first = -1;
    scroll.addEventListener('scroll', () => this.fill(false));
    scroll.tabIndex = 0;
  }

  // The columns of such rows in this unit.
  static columns(by, unit) {
    const amount = value => amountText(value, unit);
    const number = (key, title, text, hint) => ({ key, title, text, hint, isNumber: true });
    const columns = [
      number('self', by === 'site' ? 'Bytes' : 'Itself', amount, 'What was allocated there, without what is further inside'),
      number('selfShare', '', share => share, ''),
      number('total', 'Total', amount, 'What all stacks through it have; each counts once'),
      number('totalShare', '', share => share, ''),
      number('blocks', 'Blocks', countText, 'Blocks of what is itself'),
      number('mean', 'Mean size', value => (Number.isNaN(value) ? '–' : bytesText(value)), 'Of all blocks allocated there'),
      number('temporary', 'Temporary', value => (Number.isNaN(value) ? '–' : percentText(value, 1)), 'The share of all blocks allocated there that were freed before their thread’s next allocation'),
    ];
    const isWhole = by === 'thread' || by === 'site';
    const kept = isWhole ? columns.filter(column => !column.key.startsWith('total')) : columns;
    if (isWhole && unit === 'blocks') kept[0].title = 'Blocks';
    else if (isWhole) kept[0].title = 'Bytes';
    const title = { function: 'Function', file: 'File', module: 'Module', thread: 'Thread', site: 'Allocated by' }[by];
    kept.push({ key: 'name', title, text: name => name, isNumber: false });
    if (by === 'function' || by === 'site') kept.push({ key: 'place', title: 'Where', text: shortPath, isNumber: false });
    return kept;
  }

  show(rows, columns, whole, sort, down) {
    for (const row of rows) {
      row.selfShare = percentText(row.self, whole);
      row.totalShare = percentText(row.total, whole);
    }
    const column = { selfShare: 'self', totalShare: 'total' }[sort] ?? sort;
    const known = columns.some(({ key }) => key === column) ? column : 'self';
    this.rows = sorted([...rows], known, down);
    this.columns = columns;
    const cells = columns.map(({ key, title, hint, isNumber }) => {
      const order = key === known ? (down ? 'descending' : 'ascending') : 'none';
      if (title === '') return make('th', { scope: 'col', class: 'number' });
      const mark = order === 'none' ? '' : down ? ' ↓' : ' ↑';
      const button = make('button', { type: 'button', title: hint, onclick: () => this.on.sort(key) }, title + mark);
      return make('th', { scope: 'col', class: isNumber ? 'number' : 'text', 'aria-sort': order, 'data-key': key }, button);
    });
    this.table.tHead.replaceChildren(make('tr', {}, ...cells));
    this.table.setAttribute('aria-rowcount', rows.length + 1);
    this.first = -1;
    this.layOut();
    this.fill(true);
  }

  layOut() {
    const room = Math.max(240, Math.min((this.rows.length + 1) * ROW_HEIGHT + 14, innerHeight - 200));
    this.scroll.style.height = `${room}px`;
  }

  // Puts the rows in sight into the page.
  fill(isNew) {
    const count = Math.ceil(this.scroll.clientHeight / ROW_HEIGHT) + 2 * SPARE;
    const first = Math.max(0, Math.min(Math.floor(this.scroll.scrollTop / ROW_HEIGHT) - SPARE, this.rows.length - count));
    if (!isNew && Math.abs(first - this.first) < SPARE / 2) return;
    this.first = first;
    const space = rows => (rows > 0 ? make('tr', { class: 'space', 'aria-hidden': 'true' }, make('td', { colspan: this.columns.length, style: `height:${rows * ROW_HEIGHT}px` })) : null);
    const shown = this.rows.slice(first, first + count).map((row, i) => {
      const cells = this.columns.map(({ key, text, isNumber }) => make('td', { class: isNumber ? 'number' : key, title: isNumber ? null : row[key] }, text(row[key])));
      return make('tr', { 'aria-rowindex': first + i + 2, onclick: () => this.on.open(row) }, ...cells);
    });
    const rest = this.rows.length - first - shown.length;
    const body = [space(first), ...shown, space(rest)].filter(row => row !== null);
    if (this.rows.length === 0) body.push(make('tr', {}, make('td', { colspan: this.columns.length, class: 'none' }, 'Nothing in this column.')));
    this.table.tBodies[0].replaceChildren(...body);
  }
}
