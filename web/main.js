// Puts the page together: one state, the views that show it, and what changes it.
import { amountText, baseName, bytesText, durationText, matcher, percentText, plural, shortName } from './text.js';
import { decode, unpack } from './data.js';
import { callees, callers, firstTree, folded, matched } from './tree.js';
import { boundsOf, ownIn } from './window.js';
import { csv, fileName, siteName, sumsBy, withShares } from './sums.js';
import { doubts, isExact, sentences } from './words.js';
import { firstState, fragmentOf, stateOf } from './state.js';
import { byId, choice, choose, make, saveFile, Tip } from './dom.js';
import { Colors, Flame } from './flame.js';
import { Table } from './table.js';
import { Timeline, windowText } from './timeline.js';
import { showFindings } from './findings.js';
import { showAbout, showSizes } from './about.js';

const COLUMN_TITLES = { live: 'Live', peak: 'At peak', allocated: 'Allocated', freed: 'Freed', temporary: 'Temporary', leaked: 'Leaked' };
const MODES = [['icicle', 'Icicle', 'i'], ['flame', 'Flame', 'f'], ['callers', 'Callers', 'c'], ['callees', 'Callees', 'e']];
const UNITS_CHOICE = [['bytes', 'Bytes', 'b'], ['blocks', 'Blocks', 'b']];
const GROUPS = [['function', 'Functions'], ['file', 'Files'], ['module', 'Modules'], ['thread', 'Threads'], ['site', 'Sites']];

// So many trees and sums are kept, for those who go back and forth.
const KEPT = 24;

// So many modules are named below the graph.
const LEGEND = 8;

// Keeps what was made last.
class Cache {
  constructor() {
    this.made = new Map();
  }

  get(key, create) {
    let value = this.made.get(key);
    if (value === undefined) {
      value = create();
      this.made.set(key, value);
      if (this.made.size > KEPT) this.made.delete(this.made.keys().next().value);
    }
    return value;
  }
}

// What is shown of the data in a state.
class Model {
  constructor(data) {
    this.data = data;
    this.kinds = data.strings.length;
    this.first = firstTree(data.nodes.depth, data.nodes.frame, data.frames.name);
    this.owns = new Map();
    this.setWindow({ from: -1, to: -1 });
    this.functions = new Map([...new Set(data.frames.name)].map(func => [data.strings[func], func]));
    this.cache = new Cache();
    this.siteOf = new Map();
    data.sites.node.forEach((node, site) => this.siteOf.set(node, site));
  }

  column(name) {
    return this.data.columns.find(column => column.name === name);
  }

  // The window that the views show: all, or that between the two heaps next to what was chosen.
  setWindow({ from, to }) {
    this.bounds = boundsOf(this.data.heaps, from, to);
    this.windowKey = this.bounds === null ? '' : ` ${this.bounds.begin} ${this.bounds.end}`;
  }

  // What each node of the first tree has by itself.
  own(name, unit) {
    const key = `${name} ${unit}${this.windowKey}`;
    if (this.bounds !== null) return this.cache.get(`own ${key}`, () => ownIn(this.data.heaps, this.first.n, this.bounds, name, unit) ?? new Float64Array(this.first.n));
    let own = this.owns.get(key);
    if (own === undefined) {
      own = new Float64Array(this.first.n);
      const values = this.column(name)?.[unit];
      const { node } = this.data.sites;
      for (let i = 0; values && i < node.length; i++) own[node[i]] += values[i];
      this.owns.set(key, own);
    }
    return own;
  }

  // For each string whether it is a function's name that was typed for; null if nothing was.
  found(typed) {
    return this.cache.get(`found ${typed}`, () => {
      const test = matcher(typed);
      if (test === null) return { marks: null, count: 0 };
      const marks = new Uint8Array(this.kinds);
      let count = 0;
      for (const [name, func] of this.functions) {
        if (test(name)) {
          marks[func] = 1;
          count += 1;
        }
      }
      return { marks, count };
    });
  }

  // The tree without what is hidden.
  folded({ hide, merge }) {
    const { marks } = this.found(hide);
    if (marks === null && !merge) return this.first;
    return this.cache.get(`folded ${merge} ${hide}`, () => folded(this.first, marks, merge));
  }

  // The tree that the graph shows.
  tree(state) {
    const below = this.folded(state);
    if (state.mode !== 'callers' && state.mode !== 'callees') return below;
    const func = this.functionOf(state.fn);
    if (state.mode === 'callees' && func < 0) return below;
    const column = func < 0 ? `${state.col} ${state.unit}${this.windowKey}` : '';
    return this.cache.get(`${state.mode} ${state.merge} ${column} ${state.fn}\n${state.hide}`, () => (state.mode === 'callers'
      ? callers(below, func, below.own(this.own(state.col, state.unit)))
      : callees(below, func)));
  }

  totals(tree, state, unit = state.unit) {
    tree.sums ??= new Map();
    const key = `${state.col} ${unit}${this.windowKey}`;
    if (tree.sums.size > 2 * KEPT) tree.sums.clear();
    if (!tree.sums.has(key)) tree.sums.set(key, tree.totals(this.own(state.col, unit)));
    return tree.sums.get(key);
  }

  // The index of a function's name; -1 if there is none.
  functionOf(name) {
    return this.functions.get(name) ?? -1;
  }

  place(frame) {
    const { frames, strings } = this.data;
    const file = frames.file[frame];
    if (file > 0) return `${strings[file]}${frames.line[frame] > 0 ? `:${frames.line[frame]}` : ''}`;
    const module = frames.module[frame];
    return module > 0 ? `[${baseName(strings[module])}]` : '';
  }

  // Makes beforehand what a key may ask for, while nothing else is to be done.
  prepare() {
    const wanted = this.data.columns.flatMap(column => [[column.name, 'bytes'], [column.name, 'blocks']]);
    const next = () => {
      const pair = wanted.shift();
      if (pair === undefined) return;
      if (this.bounds === null) this.totals(this.first, { col: pair[0], unit: pair[1] });
      requestIdleCallback(next);
    };
    requestIdleCallback(next);
  }

  // The rows of the table.
  rows(state) {
    return this.cache.get(`rows ${state.by} ${state.col} ${state.unit}${this.windowKey} ${state.merge} ${state.hide}`, () => this.makeRows(state));
  }

  makeRows(state) {
    const { data } = this;
    const { frames, strings } = data;
    if (state.by === 'thread') return this.bounds === null ? this.threadRows(state) : [];
    if (state.by === 'site') return this.siteRows(state);
    const tree = this.folded(state);
    const own = {
      self: tree.own(this.own(state.col, state.unit)), blocks: tree.own(this.own(state.col, 'blocks')), allocations: tree.own(this.own('allocated', 'blocks')),
      allocatedBytes: tree.own(this.own('allocated', 'bytes')), temporaries: tree.own(this.own('temporary', 'blocks')),
    };
    const fileOf = node => frames.file[tree.frame[node]] * (strings.length + 1) + (frames.file[tree.frame[node]] > 0 ? 0 : frames.module[tree.frame[node]]);
    let [groups, key, title] = [this.kinds, node => tree.func[node], group => shortName(strings[group])];
    const frameOf = new Map();
    if (state.by === 'function') {
      for (let i = tree.n - 1; i > 0; i--) frameOf.set(tree.func[i], tree.frame[i]);
    } else if (state.by === 'module') {
      key = node => frames.module[tree.frame[node]];
      title = group => (group > 0 ? strings[group] : '[none]');
    } else {
      const numbers = new Map();
      const titles = [];
      const of = new Int32Array(tree.n);
      for (let i = 1; i < tree.n; i++) {
        const file = fileOf(i);
        if (!numbers.has(file)) {
          numbers.set(file, titles.length);
          titles.push(fileName(strings, frames.file[tree.frame[i]], frames.module[tree.frame[i]]));
        }
        of[i] = numbers.get(file);
      }
      [groups, key, title] = [titles.length, node => of[node], group => titles[group]];
    }
    const rows = withShares(sumsBy(tree, groups, key, own, 'self'));
    for (const row of rows) {
      row.name = title(row.group);
      if (state.by === 'function') {
        row.whole = strings[row.group];
        const file = frames.file[frameOf.get(row.group)];
        row.place = fileName(strings, file, frames.module[frameOf.get(row.group)]);
      }
    }
    return rows;
  }

  siteRows({ col, unit }) {
    const { sites, strings } = this.data;
    const values = { self: this.own(col, unit), blocks: this.own(col, 'blocks'), allocations: this.own('allocated', 'blocks'), allocatedBytes: this.own('allocated', 'bytes'), temporaries: this.own('temporary', 'blocks') };
    const rows = [];
    sites.node.forEach((node, site) => {
      if (!(values.self[node] > 0)) return;
      const row = { node, total: values.self[node], name: siteName(this.first, strings, node, sites.telling[site]) };
      for (const name of Object.keys(values)) row[name] = values[name][node];
      let at = node;
      for (let up = 0; up < sites.telling[site] && this.first.parent[at] > 0; up++) at = this.first.parent[at];
      row.place = this.place(this.first.frame[at]);
      rows.push(row);
    });
    return withShares(rows);
  }

  threadRows({ col, unit }) {
    const { words, columns } = this.data;
    const at = name => columns.findIndex(column => column.name === name);
    const [shown, allocated, temporary] = [at(col), at('allocated'), at('temporary')];
    const rows = words.threads.map(({ name, amounts }) => {
      const of = column => amounts[column] ?? { objects: 0, bytes: 0 };
      const self = unit === 'bytes' ? of(shown).bytes : of(shown).objects;
      return {
        name: name === '' ? '[not told]' : name, self, total: self, blocks: of(shown).objects, allocations: of(allocated).objects, allocatedBytes: of(allocated).bytes,
        temporaries: of(temporary).objects,
      };
    });
    return withShares(rows.filter(row => row.self > 0));
  }
}

// The page.
class Page {
  constructor(data) {
    this.data = data;
    this.model = new Model(data);
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
      this.render();
    });
    this.render();
  }

  // Changes the state, and with it the page and its address. A node's number means something in its tree only.
  update(changes) {
    const before = this.state;
    this.state = { ...before, ...changes };
    const isOther = ['mode', 'fn', 'hide', 'merge'].some(key => this.state[key] !== before[key]);
    const sameTree = isOther && this.model.tree(before) === this.model.tree(this.state);
    if (isOther && !sameTree && !('zoom' in changes)) this.state.zoom = 0;
    const fragment = fragmentOf(this.state, this.firstState);
    history.replaceState(null, '', fragment === '' ? location.pathname + location.search : `#${fragment}`);
    this.render();
  }

  head() {
    const { words, report } = this.data;
    byId('program').textContent = report.program;
    const [first, ...rest] = words.header;
    byId('run').textContent = [first.replace(/^heaptrace: /, ''), ...rest].join(' ');
    const { sites, strings } = this.data;
    const nameOf = site => {
      const names = siteName(this.model.first, strings, sites.node[site], sites.telling[site]).split(' ← ');
      return names.length > 1 ? `${names[0]}, called by ${names[1]}` : names[0];
    };
    const lines = sentences(this.data, nameOf).map(({ kind, lead, text, to }) => make('a', {
      class: `word ${kind}`, href: `#${fragmentOf({ ...this.firstState, ...to }, this.firstState)}`,
      onclick: event => {
        event.preventDefault();
        this.update({ ...this.firstState, from: this.state.from, to: this.state.to, ...to });
        byId('views').scrollIntoView({ block: 'nearest' });
      },
    }, make('strong', {}, lead), text === '' ? null : make('span', {}, text)));
    const doubtful = doubts(this.data);
    const about = make('a', { class: 'word quiet', href: '#view=about', onclick: event => event.preventDefault() || this.update({ view: 'about' }) },
      make('strong', {}, doubtful.length > 0 ? 'To be known' : isExact(this.data) ? 'Exact' : 'About'), make('span', {}, doubtful.length > 0 ? doubtful.join('; ') : isExact(this.data) ? 'every allocation was recorded, nothing was missed' : 'how the figures came to be'));
    byId('words').replaceChildren(...lines, about);
    byId('course').hidden = report.timeline.length < 2;
  }

  tools() {
    const { report } = this.data;
    const views = [['flame', 'Graph'], ['table', 'Table'], ['findings', report.findings.length > 0 ? `Leaks and errors (${report.findings.length})` : 'Leaks and errors'], ['sizes', 'Sizes'], ['about', 'About']];
    const tabs = views.map(([value, title]) => make('button', { type: 'button', role: 'tab', 'data-value': value, 'aria-controls': value, onclick: () => this.update({ view: value }) }, title));
    byId('views').replaceChildren(...tabs);
    choice(byId('columns'), this.columnNames.map((name, i) => [name, COLUMN_TITLES[name], String(i + 1)]), this.state.col, col => this.update({ col }));
    choice(byId('units'), UNITS_CHOICE, this.state.unit, unit => this.update({ unit }));
    choice(byId('modes'), MODES, this.state.mode, mode => this.setMode(mode));
    choice(byId('groups'), GROUPS, this.state.by, by => this.update({ by }));
    byId('search').addEventListener('input', event => this.update({ q: event.target.value }));
    byId('hide').addEventListener('change', event => this.update({ hide: event.target.value }));
    byId('merge').addEventListener('change', event => this.update({ merge: event.target.checked }));
    byId('csv').addEventListener('click', () => {
      const file = `${this.data.report.program.replaceAll(/[^\w.-]/g, '_')}.${this.state.col}.${this.state.by}.csv`;
      saveFile(file, this.csvText(), 'text/csv');
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

  csvText() {
    const columns = Table.columns(this.state.by, this.state.unit).filter(({ key }) => !key.endsWith('Share'));
    return csv(columns, this.table.rows);
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
    const { tree } = this.flame;
    const { state, model, data } = this;
    const name = node > 0 ? data.strings[tree.func[node]] : 'all';
    const [bytes, blocks] = [model.totals(tree, state, 'bytes'), model.totals(tree, state, 'blocks')];
    const shown = state.unit === 'bytes' ? bytes : blocks;
    let inside = 0;
    for (let i = node + 1; i < tree.end[node]; i = tree.end[i]) inside += shown[i];
    const share = `${percentText(shown[node], shown[0])} of all${this.state.zoom > 0 ? `, ${percentText(shown[node], shown[this.state.zoom])} of what is shown` : ''}`;
    const own = shown[node] - inside;
    return [
      make('strong', {}, name), make('div', { class: 'place' }, node > 0 ? model.place(tree.frame[node]) : ''),
      make('div', {}, `${bytesText(bytes[node])} in ${plural(blocks[node], 'block')} – ${share}`),
      own > 0 && own < shown[node] ? make('div', { class: 'place' }, `itself ${amountText(own, state.unit)}`) : null,
    ].filter(part => part !== null);
  }

  tellNode(node) {
    const { tree } = this.flame;
    const totals = this.model.totals(tree, this.state);
    const name = node > 0 ? shortName(this.data.strings[tree.func[node]]) : 'all';
    byId('status').textContent = `${name}: ${amountText(totals[node], this.state.unit)}, ${percentText(totals[node], totals[0])}`;
  }

  render() {
    const { state } = this;
    this.model.setWindow(state);
    const isGraph = state.view === 'flame';
    const isTable = state.view === 'table';
    for (const tab of byId('views').children) {
      tab.setAttribute('aria-selected', String(tab.dataset.value === state.view));
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
    if (isGraph) this.renderGraph();
    else if (isTable) this.renderTable();
    else if (state.view === 'findings') showFindings(byId('findings'), this.data);
    else if (state.view === 'sizes') showSizes(byId('sizes'), this.data);
    else showAbout(byId('about'), this.data);
    this.renderCourse();
  }

  renderGraph() {
    const { state, model } = this;
    const tree = model.tree(state);
    const totals = model.totals(tree, state);
    if (!(state.zoom >= 0 && state.zoom < tree.n)) state.zoom = 0;
    const { marks, count } = model.found(state.q);
    this.flame.show(tree, totals, state.zoom, state.mode === 'flame', marks);
    const title = this.columnTitle();
    const blocks = model.totals(tree, state, 'blocks')[state.zoom];
    const bytes = model.totals(tree, state, 'bytes')[state.zoom];
    const parts = [`${title}: ${bytesText(bytes)} in ${plural(blocks, 'block')}`];
    if (state.zoom > 0) parts.push(`${percentText(totals[state.zoom], totals[0])} of all`);
    if (marks !== null) {
      const { sum } = matched(tree, totals, state.zoom, marks);
      parts.push(`found ${amountText(sum, state.unit)} (${percentText(sum, totals[state.zoom])}) in ${plural(count, 'function')}`);
    } else if (state.q.trim() !== '') parts.push('the expression is not one');
    byId('status').textContent = parts.join(' · ');
    this.renderFocus(tree);
    this.renderLegend();
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

  renderLegend() {
    const { colors } = this;
    const shown = colors.modules.slice(0, LEGEND).map(module => make('span', { class: 'module' }, make('i', { style: `background:${colors.swatch(module)}` }), colors.moduleName(module)));
    const more = colors.modules.length - LEGEND;
    byId('legend').replaceChildren(...shown, ...(more > 0 ? [make('span', { class: 'module' }, `and ${plural(more, 'more module')}`)] : []));
  }

  renderTable() {
    const { state, model } = this;
    let rows = model.rows(state);
    const all = this.wholeOf(rows);
    const test = matcher(state.q);
    if (test !== null) rows = rows.filter(row => test(row.whole ?? row.name) || test(row.name));
    this.table.show(rows, Table.columns(state.by, state.unit), all, state.sort, state.down);
    const title = this.columnTitle();
    const found = test === null ? '' : ` · ${plural(rows.length, 'row')} found`;
    byId('status').textContent = `${title}: ${amountText(all, state.unit)}${state.unit === 'blocks' ? ' blocks' : ''}, ${plural(rows.length, 'row')}${found}`;
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

  wholeOf(rows) {
    return rows.reduce((sum, row) => sum + row.self, 0);
  }

  renderCourse() {
    if (byId('course').hidden) return;
    const { from, to } = this.state;
    this.timeline.show(from, to);
    const note = byId('course-note');
    if (from < 0) note.textContent = 'drag to choose a part of the time';
    else {
      const seconds = ns => `${Number((ns / 1e9).toFixed(6))}s`;
      const clear = make('button', { type: 'button', onclick: () => this.update({ from: -1, to: -1 }) }, 'Show all');
      const { bounds } = this.model;
      const { heaps } = this.data;
      const at = i => durationText(i < 0 ? 0 : heaps[i].t);
      const honest = bounds !== null ? `The views show ${at(bounds.begin)} – ${at(bounds.end)}, the moments next to it whose heaps are in this file: what was allocated and freed in it, what is live at its end, and at peak the largest of its heaps. Temporary and leaked blocks, and threads, are known of the whole run only.` : `The views below are of the whole run: this file has sums only. Of a trace (--trace t.fxt): heaptrace convert t.fxt --from ${seconds(from)} --to ${seconds(to)} -o part.html`;
      note.replaceChildren(make('strong', {}, windowText(this.data.report.timeline, from, to)), ' ', clear, make('span', { class: 'honest' }, honest));
    }
  }
}

async function start() {
  const begun = performance.now();
  const [words, numbers] = await Promise.all(['data-words', 'data-numbers'].map(id => unpack(byId(id).textContent)));
  const page = new Page(decode(words, numbers));
  // For scripts that read the page.
  globalThis.heaptrace = page;
  page.model.prepare();
  document.documentElement.dataset.ready = String(Math.round(performance.now() - begun));
}

start().catch(error => {
  byId('words').replaceChildren(make('p', { class: 'word bad' }, `This report cannot be shown: ${error.message}`));
  throw error;
});
