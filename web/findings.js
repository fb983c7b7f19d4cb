// Leaks and errors, with the stacks, what still holds the blocks, and suppressions to copy.
import { copyText, make } from './dom.js';
import { baseName, bytesText, plural, shortName } from './text.js';

// So many frames are shown before one asks for all.
const SHOWN = 6;

// So many findings are put into the page at once.
const AT_ONCE = 50;

// The lines of a stack. `stack` has indices of frames, innermost first.
function stackOf(data, title, stack) {
  const { frames, strings } = data;
  const line = index => {
    const file = frames.file[index];
    const place = file > 0 ? `${strings[file]}${frames.line[index] > 0 ? `:${frames.line[index]}` : ''}` : frames.module[index] > 0 ? `[${baseName(strings[frames.module[index]])}]` : '';
    const name = strings[frames.name[index]];
    return make('li', {}, make('span', { class: 'fn', title: name }, shortName(name)), ' ', make('span', { class: 'place' }, place));
  };
  const list = make('ol', { class: 'stack' }, ...stack.slice(0, SHOWN).map(line));
  const more = stack.length - SHOWN;
  if (more > 0) {
    const button = make('button', { type: 'button', class: 'link', onclick: () => list.append(...stack.slice(SHOWN).map(line)) || button.remove() }, `${more} more`);
    return make('div', {}, make('h4', {}, title), list, button);
  }
  return make('div', {}, make('h4', {}, title), list);
}

// The way from a root to a block.
function pathOf(data, path) {
  const { frames, strings } = data;
  const step = ({ root, address, size, target_offset, next_offset, stack }) => {
    if (root !== null) return make('li', {}, make('span', { class: 'fn' }, root), address ? make('span', { class: 'place' }, ` at ${address}`) : null);
    const by = stack.length > 0 ? `, from ${shortName(strings[frames.name[stack[0]]])}` : '';
    const inside = target_offset > 0 ? ` (pointer ${plural(target_offset, 'byte')} behind its start)` : '';
    const next = next_offset === null ? '' : `, points on at +${next_offset}`;
    return make('li', {}, `block of ${bytesText(size)}${by}`, make('span', { class: 'place' }, ` ${address}${inside}${next}`));
  };
  return make('div', {}, make('h4', {}, 'held by'), make('ol', { class: 'stack' }, ...path.map(step)));
}

// What a kind is called where nothing else says it.
function kindTitle(kind) {
  const title = kind.startsWith('leak_') ? `${kind.slice(5)} leak` : kind.replaceAll('_', ' ');
  return title.replace(/^./, first => first.toUpperCase());
}

// One finding.
function card(data, finding, problem) {
  const { report } = data;
  const hidden = finding.suppressed_by !== null ? report.suppressions[finding.suppressed_by]?.rule : null;
  const classes = `finding ${problem?.fails ? 'bad' : ''} ${hidden ? 'hidden-one' : ''}`;
  const notes = [finding.baseline ? `baseline: ${finding.baseline}` : null, hidden ? `hidden by ${hidden}` : null, finding.thread ? `thread ${finding.thread}` : null, finding.alloc_fn || null];
  const title = problem?.title ?? kindTitle(finding.kind);
  const amount = finding.direct ? `${bytesText(finding.direct.bytes)} in ${plural(finding.direct.objects, 'block')}` : '';
  const held = finding.indirect && finding.indirect.objects > 0 ? `, and ${bytesText(finding.indirect.bytes)} in ${plural(finding.indirect.objects, 'block')} that hang on them` : '';
  const copy = problem?.suppression ? make('button', {
    type: 'button', class: 'copy', onclick: async event => {
      const button = event.currentTarget;
      button.textContent = (await copyText(problem.suppression)) ? 'Copied' : 'Not copied';
    },
  }, 'Copy suppression') : null;
  return make('article', { class: classes, 'data-id': finding.id },
    make('div', { class: 'line' }, make('h3', {}, title, amount ? make('span', { class: 'amount' }, ` ${amount}${held}`) : null), copy),
    problem && !finding.direct ? make('p', {}, problem.sentence) : null,
    make('p', { class: 'note' }, notes.filter(note => note !== null).join(' · ')),
    finding.stack.length > 0 ? stackOf(data, finding.direct ? 'allocated at' : 'at', finding.stack) : null,
    finding.free_stack.length > 0 ? stackOf(data, 'freed first at', finding.free_stack) : null,
    finding.alloc_stack.length > 0 ? stackOf(data, 'allocated at', finding.alloc_stack) : null,
    finding.path.length > 0 ? pathOf(data, finding.path) : null);
}

// Fills the view.
export function showFindings(element, data) {
  const { report, words } = data;
  const problems = new Map(words.problems.map(problem => [problem.id, problem]));
  const parts = [];
  if (report.leaks) {
    const row = (name, amount) => make('tr', {}, make('th', { scope: 'row' }, name), make('td', { class: 'number' }, bytesText(amount.bytes)), make('td', { class: 'number' }, plural(amount.blocks, 'block')));
    const classes = ['definite', 'indirect', 'possible', 'reachable', 'suppressed'];
    parts.push(make('table', { class: 'small', 'aria-label': 'Live blocks by class' }, make('tbody', {}, ...classes.map(name => row(name, report.leaks[name])))));
  }
  if (report.findings.length === 0) parts.push(make('p', { class: 'none' }, report.leaks ? 'Nothing was found.' : 'No leak check was made: heaptrace check, or run --leaks.'));
  const list = make('div', {});
  const fill = from => {
    const rest = report.findings.length - from - AT_ONCE;
    list.append(...report.findings.slice(from, from + AT_ONCE).map(finding => card(data, finding, problems.get(finding.id))));
    if (rest > 0) {
      const more = make('button', { type: 'button', onclick: () => more.remove() || fill(from + AT_ONCE) }, `${rest} more`);
      list.append(more);
    }
  };
  fill(0);
  element.replaceChildren(...parts, list);
}
