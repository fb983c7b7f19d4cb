// The lines of a function that have bytes, with their text, as far as the page has it.
import { make } from './dom.js';
import { baseName, bytesText, percentText } from './text.js';

// What is known of the lines of a function, by file: its text, and for each line the bytes of the column `at`. Pure.
export function linesOf({ lines, files }, frames, func, at) {
  const found = [];
  const own = lines.filter(({ frame }) => frames.name[frame] === func);
  for (const { frame, doubt, lines: texts } of files) {
    const file = frames.file[frame];
    const amounts = new Map();
    for (const line of own) {
      if (frames.file[line.frame] !== file) continue;
      const number = frames.line[line.frame];
      const before = amounts.get(number) ?? { own: 0, total: 0 };
      amounts.set(number, { own: before.own + line.own[at], total: before.total + line.total[at] });
    }
    if (amounts.size === 0) continue;
    const near = number => [...amounts].some(([line, { total }]) => total > 0 && Math.abs(line - number) <= 2);
    const shown = texts.filter(([number]) => near(number)).map(([number, text]) => ({ number, text, ...(amounts.get(number) ?? { own: 0, total: 0 }) }));
    if (shown.length > 0) found.push({ file, doubt, lines: shown });
  }
  return found;
}

// Shows them. `note` says what the amounts are of.
export function showSource(element, data, func, at, note) {
  const { strings, words, frames } = data;
  const files = func < 0 || at < 0 ? [] : linesOf(words.source, frames, func, at);
  element.hidden = files.length === 0;
  element.replaceChildren();
  if (element.hidden) return;
  const whole = data.columns[at].bytes.reduce((sum, bytes) => sum + bytes, 0);
  const parts = files.map(({ file, doubt, lines }) => {
    const rows = [];
    lines.forEach(({ number, text, own, total }, i) => {
      if (i > 0 && number !== lines[i - 1].number + 1) rows.push(make('tr', { class: 'gap' }, make('td', { colspan: 4 }, '⋯')));
      const has = total > 0;
      rows.push(make('tr', { class: has ? 'has' : '' }, make('td', { class: 'number' }, has ? bytesText(total) : ''), make('td', { class: 'number' }, has ? percentText(total, whole) : ''),
        make('th', { scope: 'row', class: 'number', title: own > 0 ? `itself ${bytesText(own)}` : null }, String(number)), make('td', {}, make('code', {}, text))));
    });
    const title = make('h3', { title: strings[file] }, baseName(strings[file]), make('span', { class: 'place' }, ` ${strings[file]}`), doubt ? make('span', { class: 'doubt' }, ` – ${doubt}`) : null);
    return make('section', {}, title, make('table', { class: 'code', 'aria-label': `Lines of ${baseName(strings[file])}` }, make('tbody', {}, ...rows)));
  });
  element.replaceChildren(...parts, ...(note === '' ? [] : [make('p', { class: 'note' }, note)]));
}
