// Puts the page together: one state, the views that show it, and what changes it.
import { amountText, bytesText, changeText, durationText, percentText, plural, shortName } from './text.js';
import { decode, unpack } from './data.js';
import { Work } from './work.js';
import { csv, siteName } from './sums.js';
import { differences, doubts, isExact, sentences } from './words.js';
import { firstState, fragmentOf, stateOf } from './state.js';
import { Model } from './model.js';
import { byId, choice, choose, make, saveFile, tell, Tip } from './dom.js';
import { Colors, Flame } from './flame.js';
import { Table } from './table.js';
import { Timeline, windowText } from './timeline.js';
import { showSource } from './source.js';
import { showFindings } from './findings.js';
import { showTests } from './tests.js';
import { showAbout, showSizes } from './about.js';

const COLUMN_TITLES = { live: 'Live', peak: 'At peak', allocated: 'Allocated', freed: 'Freed', temporary: 'Temporary', leaked: 'Leaked', grown: 'Grown', shrunk: 'Shrunk', after: 'After', before: 'Before' };
const MODES = [['icicle', 'Icicle', 'i'], ['flame', 'Flame', 'f'], ['callers', 'Callers', 'c'], ['callees', 'Callees', 'e']];
const UNITS_CHOICE = [['bytes', 'Bytes', 'b'], ['blocks', 'Blocks', 'b']];
const GROUPS = [['function', 'Functions'], ['file', 'Files'], ['module', 'Modules'], ['thread', 'Threads'], ['type', 'Types'], ['site', 'Sites']];

// So long after the last change the address tells it, in milliseconds.
const ADDRESS_PAUSE = 150;

// So many modules are named below the graph.
const LEGEND = 8;

// What is said where the report cannot be shown.
const UNSHOWN = 'This report cannot be shown';

// Tells in the page, and then the browser, what has failed.
function tellError(what, error) {
  byId('words').replaceChildren(make('p', { class: 'word bad' }, `${what}: ${error.message}`));
  throw error;
}

// The page.
class Page {
  constructor(data) {
    this.data = data;
    this.isDifference = data.words.difference !== null;
    this.model = new Model(data);
    this.work = new Work();
    this.saving = new Work();
    // What the graph and the table show.
    [this.shown, this.tabled] = [null, null];
    this.columnNames = data.columns.map(column => column.name);
    this.firstState = firstState(data.words.column);
    this.state = stateOf(location.hash, this.firstState, this.columnNames);
    this.colors = new Colors(data);
    this.tip = new Tip(byId('tip'));
    this.flame = new Flame(byId('flame-canvas'), byId('flame-scroll'), byId('flame-space'), data, this.colors, {
      zoom: node => this.update({ zoom: node }),
      focus: node => this.tellNode(node),
      hover: (node, x, y) => this.tip.show(x, y, ...this.tipOf(node)),
      leave: () => this.tip.hide(),
    });
    this.table = new Table(byId('table-scroll'), byId('rows'), {
      sort: sort => this.update({ sort, down: this.state.sort === sort ? !this.state.down : sort !== 'name' && sort !== 'place' }),
      open: row => this.open(row),
    });
    this.timeline = new Timeline(byId('timeline'), data, this.tip, { window: (from, to) => this.update({ from, to }) });
    this.head();
    this.tools();
    addEventListener('resize', () => this.render());
    addEventListener('hashchange', () => {
      this.state = stateOf(location.hash, this.firstState, this.columnNames);
      this.render();
    });
    addEventListener('keydown', event => this.key(event));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
      this.colors.themed();
      this.renderLegend();
      this.render();
    });
    this.renderLegend();
    this.render();
  }

  // Changes the state, and with it the page and (a moment later) its address.
  update(changes) {
    this.state = this.model.changed(this.state, changes);
    this.render();
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.tellAddress(), ADDRESS_PAUSE);
  }

  // Browsers take their time for it, and refuse it if it comes too often.
  tellAddress() {
    const fragment = fragmentOf(this.state, this.firstState);
    if (location.hash.slice(1) !== fragment) history.replaceState(null, '', fragment === '' ? location.pathname + location.search : `#${fragment}`);
  }

  head() {
    const { words, report } = this.data;
    byId('program').textContent = this.isDifference ? words.difference.files.join(' → ') : report.program;
    const [first, ...rest] = words.header;
    byId('run').textContent = [first.replace(/^heaptrace: /, ''), ...rest].join(' ');
    const { sites, strings } = this.data;
    const nameOf = site => {
      const names = siteName(this.model.first, strings, sites.node[site], sites.telling[site]).split(' ← ');
      return names.length > 1 ? `${names[0]}, called by ${names[1]}` : names[0];
    };
    const told = this.isDifference ? differences(this.data, nameOf) : sentences(this.data, nameOf);
    const lines = told.map(({ kind, lead, text, to }) => make('a', {
      class: `word ${kind}`, href: `#${fragmentOf({ ...this.firstState, ...to }, this.firstState)}`,
      onclick: event => {
        event.preventDefault();
        this.update({ ...this.firstState, from: this.state.from, to: this.state.to, ...to });
        byId('views').scrollIntoView({ block: 'nearest' });
      },
    }, make('strong', {}, lead), text === '' ? null : make('span', {}, text)));
    byId('words').replaceChildren(...lines, ...(this.isDifference ? [] : [this.aboutLine()]));
    byId('course').hidden = report.timeline.length === 0;
  }

  // What leads to how the figures came to be.
  aboutLine() {
    const doubtful = doubts(this.data);
    return make('a', { class: 'word quiet', href: '#view=about', onclick: event => event.preventDefault() || this.update({ view: 'about' }) },
      make('strong', {}, doubtful.length > 0 ? 'Caveats' : isExact(this.data) ? 'Exact' : 'About'), make('span', {}, doubtful.length > 0 ? doubtful.join('; ') : isExact(this.data) ? 'every allocation was recorded, nothing was missed' : 'how the figures came to be'));
  }

  tools() {
    const { report } = this.data;
    const views = [['flame', 'Graph'], ['table', 'Table'], ['findings', report.findings.length > 0 ? `Leaks and errors (${report.findings.length})` : 'Leaks and errors'], ['tests', 'Tests'], ['sizes', 'Sizes'], ['about', 'About']];
    const hasTests = (report.tests ?? null) !== null;
    const shown = this.isDifference ? views.slice(0, 2) : views.filter(([value]) => value !== 'tests' || hasTests);
    views.forEach(([value]) => { byId(value).hidden = true; });
    const tabs = shown.map(([value, title]) => make('button', { type: 'button', role: 'tab', 'data-value': value, 'aria-controls': value, onclick: () => this.update({ view: value }) }, title));
    byId('views').replaceChildren(...tabs);
    choice(byId('columns'), this.columnNames.map((name, i) => [name, COLUMN_TITLES[name], String(i + 1)]), this.state.col, col => this.update({ col }));
    choice(byId('units'), UNITS_CHOICE, this.state.unit, unit => this.update({ unit }));
    choice(byId('modes'), MODES, this.state.mode, mode => this.setMode(mode));
    // Whose threads could be compared is not known.
    choice(byId('groups'), GROUPS.filter(([by]) => by !== 'thread' || !this.isDifference), this.state.by, by => this.update({ by }));
    byId('search').addEventListener('input', event => this.update({ q: event.target.value }));
    byId('hide').addEventListener('change', event => this.update({ hide: event.target.value }));
    byId('merge').addEventListener('change', event => this.update({ merge: event.target.checked }));
    byId('csv').addEventListener('click', () => {
      if (this.tabled === null) return;
      const file = `${this.data.report.program.replaceAll(/[^\w.-]/g, '_')}.${this.tabled.col}.${this.tabled.by}.csv`;
      this.saving.begin(this.csv(), text => saveFile(file, text, 'text/csv'), () => {}, error => tellError('The table cannot be saved', error));
    });
  }

  // Callers and callees are those of the function that is chosen in the graph, if one is.
  setMode(mode) {
    const isOne = mode === 'callers' || mode === 'callees';
    const node = this.flame.focus;
    const { tree } = this.flame;
    const func = tree && node > 0 && node < tree.n ? tree.func[node] : -1;
    this.update({ mode, fn: isOne && func >= 0 ? this.data.strings[func] : isOne ? this.state.fn : '' });
  }

  open(row) {
    if (row.node !== undefined) this.update({ view: 'flame', mode: 'icicle', fn: '', hide: '', merge: false, zoom: row.node });
    else if (row.whole !== undefined) this.update({ view: 'flame', mode: 'callers', fn: row.whole, zoom: 0 });
  }

  // The table that is shown: another one may have been asked for already.
  csv() {
    const { rows, order, columns } = this.tabled;
    return csv(columns.filter(({ share }) => share === undefined), rows, order);
  }

  key(event) {
    const isTyping = event.target instanceof HTMLInputElement && event.target.type !== 'checkbox';
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isTyping) {
      if (event.key === 'Escape') event.target.blur();
      return;
    }
    const column = this.columnNames[Number(event.key) - 1];
    const mode = MODES.find(([, , key]) => key === event.key);
    if (column !== undefined) this.update({ col: column });
    else if (event.key === 'b') this.update({ unit: this.state.unit === 'bytes' ? 'blocks' : 'bytes' });
    else if (mode) this.setMode(mode[0]);
    else if (event.key === 'g') this.update({ view: 'flame' });
    else if (event.key === 't') this.update({ view: 'table' });
    else if (event.key === 'h') this.hideFocused();
    else if (event.key === '/') byId('search').focus();
    else return;
    event.preventDefault();
  }

  hideFocused() {
    const { tree, focus } = this.flame;
    const func = tree && focus > 0 ? tree.func[focus] : -1;
    if (func < 0) return;
    const name = this.data.strings[func].replaceAll(/[.*+?^${}()|[\]\\/]/g, '\\$&');
    const before = /^\/(.*)\/$/.exec(this.state.hide)?.[1];
    this.update({ hide: `/${before ? `${before}|` : ''}^${name}$/` });
  }

  // What a node is, in lines for the tip.
  tipOf(node) {
    const { state, model, data } = this;
    const { tree, sums: { bytes, blocks }, totals: shown } = this.shown;
    const name = node > 0 ? data.strings[tree.func[node]] : 'all';
    let inside = 0;
    for (let i = node + 1; i < tree.end[node]; i = tree.end[i]) inside += shown[i];
    const share = `${percentText(shown[node], shown[0])} of all${this.state.zoom > 0 ? `, ${percentText(shown[node], shown[this.state.zoom])} of what is shown` : ''}`;
    const own = shown[node] - inside;
    return [
      make('strong', {}, name), make('div', { class: 'place' }, node > 0 ? model.place(tree.frame[node]) : ''),
      make('div', {}, `${bytesText(bytes[node])} in ${plural(blocks[node], 'block')} – ${share}`),
      own > 0 && own < shown[node] ? make('div', { class: 'place' }, `itself ${amountText(own, state.unit)}`) : null,
      this.isDifference ? make('div', {}, this.changeOf(node)) : null,
    ].filter(part => part !== null);
  }

  // What a node had and has, of a difference.
  changeOf(node) {
    const { before, after } = this.shown.change;
    const { unit } = this.state;
    return `${amountText(before[node], unit)} before, ${amountText(after[node], unit)} after: ${changeText(after[node] - before[node], unit)}`;
  }

  tellNode(node) {
    const { tree, totals } = this.shown;
    const name = node > 0 ? shortName(this.data.strings[tree.func[node]]) : 'all';
    byId('status').textContent = `${name}: ${amountText(totals[node], this.state.unit)}, ${percentText(totals[node], totals[0])}${this.isDifference ? `; ${this.changeOf(node)}` : ''}`;
  }

  render() {
    const { state } = this;
    this.model.setWindow(state);
    const isGraph = state.view === 'flame';
    const isTable = state.view === 'table';
    for (const tab of byId('views').children) {
      tell(tab, 'aria-selected', tab.dataset.value === state.view);
      byId(tab.dataset.value).hidden = tab.dataset.value !== state.view;
    }
    byId('tools').hidden = !isGraph && !isTable;
    byId('status').hidden = !isGraph && !isTable;
    byId('modes').hidden = !isGraph;
    byId('groups').hidden = !isTable;
    byId('csv').hidden = !isTable;
    byId('merge-label').hidden = !isGraph;
    choose(byId('columns'), state.col);
    choose(byId('units'), state.unit);
    choose(byId('modes'), state.mode);
    choose(byId('groups'), state.by);
    for (const [id, value] of [['search', state.q], ['hide', state.hide]]) {
      if (byId(id).value !== value) byId(id).value = value;
    }
    byId('merge').checked = state.merge;
    this.tip.hide();
    this.work.stop();
    if (isGraph) this.later(this.model.graph(state), shown => this.renderGraph(shown));
    else if (isTable) {
      const columns = Table.columns(state.by, state.unit, this.isDifference, this.data.lifetimes !== null && this.model.bounds === null);
      this.later(this.model.table(state, Table.sortable(columns, state.sort)), shown => this.renderTable(shown, columns));
    } else this.wait(false);
    if (state.view === 'findings') showFindings(byId('findings'), this.data);
    else if (state.view === 'tests' && this.data.report.tests) showTests(byId('tests'), this.data);
    else if (state.view === 'sizes') showSizes(byId('sizes'), this.data);
    else if (state.view === 'about') showAbout(byId('about'), this.data);
    this.renderCourse();
  }

  // Shows what takes its time: until it is there, the picture before stays, faint.
  later(steps, show) {
    this.work.begin(steps, made => {
      this.wait(false);
      show(made);
    }, () => this.wait(true), error => {
      this.wait(false);
      tellError(UNSHOWN, error);
    });
  }

  wait(isOn) {
    byId('view').classList.toggle('waits', isOn);
    this.flame.waits = isOn;
  }

  // When the views show what was asked for.
  async settled() {
    await this.work.settled();
    this.tellAddress();
  }

  renderGraph(shown) {
    this.shown = shown;
    const { state } = this;
    const { tree, sums, totals, zoom, marks, found, change } = shown;
    state.zoom = zoom;
    this.flame.show(tree, totals, zoom, state.mode === 'flame', marks, change);
    const title = this.columnTitle();
    const parts = [`${title}: ${bytesText(sums.bytes[zoom])} in ${plural(sums.blocks[zoom], 'block')}`];
    if (zoom > 0) parts.push(`${percentText(totals[zoom], totals[0])} of all`);
    if (change !== null) parts.push(this.changeOf(zoom));
    if (found !== null) parts.push(`found ${amountText(found.sum, state.unit)} (${percentText(found.sum, totals[zoom])}) in ${plural(found.count, 'function')}`);
    else if (state.q.trim() !== '') parts.push('the expression is not one');
    byId('status').textContent = parts.join(' · ');
    this.renderFocus(tree);
    this.renderSource(tree);
  }

  // The line above the graph: what it is about, and what can be done with that.
  renderFocus(tree) {
    const { state, data } = this;
    const isOne = state.mode === 'callers' || state.mode === 'callees';
    const func = state.zoom > 0 ? tree.func[state.zoom] : -1;
    const line = byId('focus-line');
    line.hidden = func < 0 && !isOne;
    if (line.hidden) return;
    const button = (title, changes) => make('button', { type: 'button', onclick: () => this.update(changes) }, title);
    const parts = [];
    if (isOne) {
      const whose = state.fn === '' ? 'all allocations' : shortName(state.fn);
      parts.push(make('span', { title: state.fn }, `${state.mode === 'callers' ? 'Callers' : 'Callees'} of `, make('strong', {}, whose)));
      if (state.mode === 'callees' && state.fn === '') parts.splice(0, 1, make('span', {}, 'Choose a function in the graph to see whom it calls.'));
      parts.push(button('Back to all', { mode: 'icicle', fn: '', zoom: 0 }));
    }
    if (func >= 0) {
      const name = data.strings[func];
      parts.push(make('span', { title: name }, 'Zoomed to ', make('strong', {}, shortName(name))), button('Zoom out', { zoom: 0 }), button('Callers', { mode: 'callers', fn: name, zoom: 0 }), button('Callees', { mode: 'callees', fn: name, zoom: 0 }));
    }
    line.replaceChildren(...parts);
  }

  // The source of the function that the graph is zoomed to, or of which it shows callers or callees.
  renderSource(tree) {
    const { state, model, columnNames } = this;
    const func = state.zoom > 0 ? tree.func[state.zoom] : model.functionOf(state.fn);
    const at = columnNames.indexOf(state.col);
    const key = `${func} ${at} ${model.windowKey}`;
    if (key === this.sourceKey) return;
    this.sourceKey = key;
    showSource(byId('source'), this.data, func, at, model.bounds === null ? '' : 'The bytes of lines are those of the whole run.');
  }

  renderLegend() {
    const { colors } = this;
    if (this.isDifference) {
      const of = ([way, text]) => make('span', { class: 'module' }, make('i', { style: `background:${colors.changeSwatch(way)}` }), text);
      byId('legend').replaceChildren(...[[1, 'more than before'], [0, 'as before'], [-1, 'less than before']].map(of));
      return;
    }
    const shown = colors.modules.slice(0, LEGEND).map(module => make('span', { class: 'module' }, make('i', { style: `background:${colors.swatch(module)}` }), colors.moduleName(module)));
    const more = colors.modules.length - LEGEND;
    byId('legend').replaceChildren(...shown, ...(more > 0 ? [make('span', { class: 'module' }, `and ${plural(more, 'more module')}`)] : []));
  }

  renderTable({ rows, order, isFound }, columns) {
    const { state } = this;
    this.tabled = { rows, order, columns, col: state.col, by: state.by };
    this.table.show(rows, order, columns, state.sort, state.down);
    const found = isFound ? ` · ${plural(order.length, 'row')} found` : '';
    byId('status').textContent = `${this.columnTitle()}: ${amountText(rows.whole, state.unit)}${state.unit === 'blocks' ? ' blocks' : ''}, ${plural(rows.count, 'row')}${found}`;
  }

  // What is shown, and of which time.
  columnTitle() {
    const { data, model, state } = this;
    const title = model.column(state.col)?.title ?? '';
    if (model.bounds === null) return title;
    const at = i => durationText(i < 0 ? 0 : data.heaps[i].t);
    const end = at(model.bounds.end);
    const titles = { live: `Live at ${end}`, allocated: 'Allocated', freed: 'Freed', peak: 'Live at most' };
    const begin = state.col === 'live' ? '' : ` from ${at(model.bounds.begin)} to ${end}`;
    return titles[state.col] ? titles[state.col] + begin : `${title} (of a part of the time not known)`;
  }

  renderCourse() {
    if (byId('course').hidden) return;
    const { from, to } = this.state;
    if (!this.timeline.show(from, to, this.colors.look)) return;
    const note = byId('course-note');
    if (from < 0) note.textContent = 'drag to choose a part of the time';
    else {
      const seconds = ns => `${Number((ns / 1e9).toFixed(6))}s`;
      const clear = make('button', { type: 'button', onclick: () => this.update({ from: -1, to: -1 }) }, 'Show all');
      const { bounds } = this.model;
      const { heaps } = this.data;
      const at = i => durationText(i < 0 ? 0 : heaps[i].t);
      const honest = bounds !== null ? `The views show ${at(bounds.begin)} – ${at(bounds.end)}, the moments next to it whose heaps are in this file: what was allocated and freed in it, what is live at its end, and at peak the largest of its heaps. Temporary and leaked blocks, and threads, are known of the whole run only.` : `The views below are of the whole run: this file has sums only. Of a trace (--trace t.fxt): heaptrace convert t.fxt --from ${seconds(from)} --to ${seconds(to)} -o part.html`;
      note.replaceChildren(make('strong', {}, windowText(this.data.report.timeline, from, to, this.timeline.before)), ' ', clear, make('span', { class: 'honest' }, honest));
    }
  }
}

// Makes beforehand what keys may ask for, and tries what gestures do, while nothing else is to be done.
function prepare(page) {
  const canvas = make('canvas');
  const steps = page.model.beforehand(totals => page.state.view === 'flame' && page.flame.rehearse(totals, canvas));
  // Not every browser tells when it is idle: one step at a time, then.
  const once = next => {
    let asked = 0;
    setTimeout(() => next({ timeRemaining: () => (asked++ === 0 ? Infinity : 0) }), 30);
  };
  const idle = globalThis.requestIdleCallback ?? once;
  let wanted = 0;
  const next = deadline => {
    while (deadline.timeRemaining() >= wanted) {
      const { done, value } = steps.next();
      if (done) return;
      wanted = value;
    }
    idle(next);
  };
  idle(next);
}

async function start() {
  const begun = performance.now();
  const [words, numbers] = await Promise.all(['data-words', 'data-numbers'].map(id => unpack(byId(id).textContent)));
  const page = new Page(decode(words, numbers));
  // For scripts that read the page.
  globalThis.heaptrace = page;
  prepare(page);
  await page.settled();
  document.documentElement.dataset.ready = String(Math.round(performance.now() - begun));
}

start().catch(error => tellError(UNSHOWN, error));
