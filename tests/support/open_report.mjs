// Opens reports of heaptrace (.html) in Chromium without a window, uses them as a person does, and prints what is read back as JSON.
// node --experimental-websocket open_report.mjs CHROMIUM PLAN FILE...
// PLAN is `window`: parts of the time of a file that knows them; `use`: every view of one file; `look`: only what is there at first, of each file; `time`: how long the first file takes.
import { pathToFileURL } from 'node:url';
import { Browser } from './browser.mjs';

const [chromium, plan, ...files] = process.argv.slice(2);
const browser = await Browser.start(chromium);
const problems = [];
const requests = [];
browser.heard = ({ method, params }) => {
  if (method === 'Runtime.exceptionThrown') problems.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
  if (method === 'Runtime.consoleAPICalled') problems.push(`${params.type}: ${params.args.map(arg => arg.value).join(' ')}`);
  if (method === 'Log.entryAdded') problems.push(`${params.entry.level}: ${params.entry.text}`);
  if (method === 'Network.requestWillBeSent') requests.push(params.request.url);
};

async function opened(url, isDark = false) {
  const page = await browser.open(url, async page => {
    for (const domain of ['Page', 'Runtime', 'Log', 'Network']) await page.call(`${domain}.enable`);
    await page.call('Emulation.setDeviceMetricsOverride', { width: 1400, height: 1000, deviceScaleFactor: 1, mobile: false });
    if (isDark) await page.call('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: 'dark' }] });
  });
  await page.until('the report', 'document.documentElement.dataset.ready');
  return page;
}

const words = page => page.evaluate(`[...document.querySelectorAll('#words .word')].map(word => [...word.children].map(part => part.textContent).join(': '))`);
const text = (page, selector) => page.evaluate(`document.querySelector(${JSON.stringify(selector)}).textContent`);

async function mouse(page, type, x, y) {
  await page.call('Input.dispatchMouseEvent', { type, x, y, button: type === 'mouseMoved' ? 'none' : 'left', buttons: type === 'mouseReleased' ? 0 : 1, clickCount: 1 });
}

async function click(page, x, y) {
  await mouse(page, 'mouseMoved', x, y);
  await mouse(page, 'mousePressed', x, y);
  await mouse(page, 'mouseReleased', x, y);
}

async function clickOn(page, selector) {
  const [x, y] = await page.evaluate(`(() => { const element = document.querySelector(${JSON.stringify(selector)}); element.scrollIntoView({ block: 'center' }); const { x, y, width, height } = element.getBoundingClientRect(); return [x + width / 2, y + height / 2]; })()`);
  await click(page, x, y);
}

async function press(page, key) {
  const text = key.length === 1 ? { text: key } : {};
  await page.call('Input.dispatchKeyEvent', { type: 'keyDown', key, ...text });
  await page.call('Input.dispatchKeyEvent', { type: 'keyUp', key });
}

// The rows that the table has, and what the first of them show.
const rows = page => page.evaluate(`({
  all: heaptrace.table.rows.map(({ name, whole, self, total, blocks, mean, temporary }) => ({ name: whole ?? name, self, total, blocks, mean, temporary })),
  shown: [...document.querySelectorAll('#rows tbody tr:not(.space)')].map(row => [...row.cells].map(cell => cell.textContent)),
  headings: [...document.querySelectorAll('#rows thead th')].map(cell => cell.textContent),
})`);

// Where on the page a function is drawn: the middle of its first frame.
const placeOf = (page, name) => page.evaluate(`(() => {
  const { flame, data } = heaptrace;
  const box = flame.canvas.getBoundingClientRect();
  for (let depth = 0; depth < flame.rows.length; depth++) {
    const row = flame.rows[depth];
    const at = row ? row.node.findIndex(node => node > 0 && data.strings[flame.tree.func[node]] === ${JSON.stringify(name)}) : -1;
    if (at >= 0) return [box.x + row.x[at] + row.w[at] / 2, box.y + depth * 20 + 10 - flame.scroll.scrollTop];
  }
  return null;
})()`);

async function use(file, name) {
  const told = {};
  const url = pathToFileURL(file).href;
  const page = await opened(url);
  told.title = await page.evaluate('document.title');
  told.words = await words(page);
  told.columns = {};
  const columns = await page.evaluate('heaptrace.columnNames');
  for (const [i, column] of columns.entries()) {
    await press(page, String(i + 1));
    told.columns[column] = {
      status: await text(page, '#status'),
      pressed: await text(page, '#columns [aria-pressed=true]'),
      bytes: await page.evaluate(`heaptrace.flame.totals[0]`),
      blocks: await page.evaluate(`heaptrace.model.totals(heaptrace.flame.tree, heaptrace.state, 'blocks')[0]`),
    };
  }
  // a click zooms, and the address that it makes opens the same
  await press(page, '1');
  const place = await placeOf(page, name);
  await mouse(page, 'mouseMoved', ...place);
  told.tip = await text(page, '#tip');
  await click(page, ...place);
  told.zoomed = await text(page, '#status');
  told.fragment = await page.evaluate('location.hash');
  const other = await opened(url + told.fragment, true);
  told.again = await text(other, '#status');
  told.colors = [await page.evaluate('getComputedStyle(document.body).backgroundColor'), await other.evaluate('getComputedStyle(document.body).backgroundColor')];
  // a page behind another one is slow to hear of the mouse
  await page.call('Page.bringToFront');
  await clickOn(page, '#focus-line button');
  told.unzoomed = await text(page, '#status');
  // the search
  await press(page, '/');
  await page.call('Input.insertText', { text: name });
  told.found = await text(page, '#status');
  await page.evaluate(`heaptrace.update({ q: '' })`);
  await press(page, 'Escape');
  // callers and callees of a function
  told.modes = {};
  for (const mode of ['flame', 'callers', 'callees']) {
    await page.evaluate(`heaptrace.update({ mode: ${JSON.stringify(mode)}, fn: ${JSON.stringify(mode === 'flame' ? '' : name)} })`);
    told.modes[mode] = {
      bytes: await page.evaluate('heaptrace.flame.totals[0]'),
      functions: await page.evaluate(`[...heaptrace.flame.tree.func].slice(1).map(func => heaptrace.data.strings[func])`),
    };
  }
  await page.evaluate(`heaptrace.update({ mode: 'icicle', fn: '', hide: ${JSON.stringify(name)} })`);
  told.hidden = await page.evaluate(`({ bytes: heaptrace.flame.totals[0], functions: [...heaptrace.flame.tree.func].slice(1).map(func => heaptrace.data.strings[func]) })`);
  await page.evaluate(`heaptrace.update({ hide: '' })`);
  // keys move in the graph
  await page.evaluate(`heaptrace.flame.canvas.focus()`);
  await press(page, 'ArrowDown');
  told.moved = await text(page, '#status');
  // the table
  told.tables = {};
  await clickOn(page, '#views [data-value=table]');
  for (const by of ['function', 'file', 'module', 'thread', 'site']) {
    await clickOn(page, `#groups [data-value=${by}]`);
    told.tables[by] = {};
    for (const [i, column] of columns.entries()) {
      await press(page, String(i + 1));
      told.tables[by][column] = await rows(page);
    }
  }
  await clickOn(page, '#groups [data-value=function]');
  await clickOn(page, '#rows [data-key=name] button');
  told.byName = (await rows(page)).all.map(row => row.name);
  told.csv = await page.evaluate('heaptrace.csvText()');
  // a part of the time
  const box = await page.evaluate(`(() => { window.scrollTo(0, 0); const { x, y, width } = document.getElementById('timeline').getBoundingClientRect(); return [x, y, width]; })()`);
  await mouse(page, 'mouseMoved', box[0] + box[2] * 0.3, box[1] + 50);
  await mouse(page, 'mousePressed', box[0] + box[2] * 0.3, box[1] + 50);
  await mouse(page, 'mouseMoved', box[0] + box[2] * 0.8, box[1] + 50);
  await mouse(page, 'mouseReleased', box[0] + box[2] * 0.8, box[1] + 50);
  told.brushed = await text(page, '#course-note');
  told.window = await page.evaluate('[heaptrace.state.from, heaptrace.state.to, heaptrace.timeline.end]');
  for (const view of ['findings', 'sizes', 'about']) {
    await clickOn(page, `#views [data-value=${view}]`);
    told[view] = await text(page, `#${view}`);
  }
  told.findingIds = await page.evaluate(`[...document.querySelectorAll('#findings .finding')].map(card => card.dataset.id)`);
  told.suppressions = await page.evaluate(`heaptrace.data.words.problems.map(problem => problem.suppression)`);
  return told;
}

async function look(file) {
  const page = await opened(pathToFileURL(file).href);
  const told = { title: await page.evaluate('document.title'), words: await words(page), status: await text(page, '#status') };
  for (const view of ['table', 'findings', 'sizes', 'about', 'flame']) {
    await page.evaluate(`heaptrace.update({ view: '${view}' })`);
    told[view] = await text(page, `#${view}`);
  }
  await page.evaluate(`heaptrace.update({ view: 'table', col: 'live' })`);
  told.live = (await rows(page)).all;
  // what only markup of others could have made
  told.foreign = await page.evaluate(`document.querySelectorAll('img, iframe, object, embed, link, base, form, svg, script:not([type])').length`);
  told.scripts = await page.evaluate('document.scripts.length');
  told.owned = await page.evaluate('String(window.owned)');
  return told;
}

// Milliseconds until the report is there, and of each gesture, measured in the page.
async function time(file) {
  const page = await opened(pathToFileURL(file).href);
  const ready = Number(await page.evaluate('document.documentElement.dataset.ready'));
  const gestures = await page.evaluate(`(() => {
    const taken = {};
    const gesture = (name, act) => { const times = []; for (let i = 0; i < 5; i++) { const begun = performance.now(); act(i); times.push(performance.now() - begun); } taken[name] = times.map(time => Math.round(time * 10) / 10); };
    const first = heaptrace.flame.tree;
    const deep = [...first.depth.keys()].filter(i => first.depth[i] > 4).slice(0, 5);
    gesture('draw', () => heaptrace.flame.draw());
    gesture('column', i => heaptrace.update({ col: heaptrace.columnNames[i % heaptrace.columnNames.length] }));
    gesture('zoom', i => heaptrace.update({ zoom: deep[i % deep.length] ?? 0 }));
    heaptrace.update({ zoom: 0 });
    gesture('search', i => heaptrace.update({ q: 'method' + (10 + i) }));
    heaptrace.update({ q: '' });
    gesture('flame', i => heaptrace.update({ mode: i % 2 ? 'icicle' : 'flame' }));
    gesture('callers', i => heaptrace.update({ mode: 'callers', fn: heaptrace.data.strings[heaptrace.model.first.func[deep[i]]] }));
    gesture('callees', i => heaptrace.update({ mode: 'callees', fn: heaptrace.data.strings[heaptrace.model.first.func[deep[i]]] }));
    gesture('bottom-up', i => heaptrace.update({ mode: 'callers', fn: '', col: heaptrace.columnNames[i] }));
    heaptrace.update({ mode: 'icicle', fn: '' });
    gesture('merge', i => heaptrace.update({ merge: i % 2 === 0 }));
    heaptrace.update({ merge: false });
    gesture('hide', i => heaptrace.update({ hide: 'method' + (20 + i) }));
    heaptrace.update({ hide: '' });
    heaptrace.update({ view: 'table' });
    gesture('sort', i => heaptrace.update({ down: i % 2 === 0 }));
    gesture('sites', i => heaptrace.update({ by: i % 2 ? 'function' : 'site' }));
    return taken;
  })()`);
  return { ready, nodes: await page.evaluate('heaptrace.model.first.n'), sites: await page.evaluate('heaptrace.data.sites.node.length'), gestures };
}

// What the views show of the middle third of the time: its bounds, and the sums of each column.
async function part(file) {
  const page = await opened(pathToFileURL(file).href);
  const moments = await page.evaluate('heaptrace.data.heaps.map(heap => heap.t)');
  const [from, to] = [moments[Math.floor(moments.length / 3)], moments[Math.floor(moments.length * 2 / 3)]];
  await page.evaluate(`heaptrace.update({ from: ${from}, to: ${to} })`);
  const told = { from, to, moments: moments.length, note: await text(page, '#course-note'), columns: {}, functions: {} };
  for (const column of ['live', 'allocated', 'freed', 'peak']) {
    await page.evaluate(`heaptrace.update({ view: 'flame', col: '${column}' })`);
    told.columns[column] = {
      status: await text(page, '#status'),
      bytes: await page.evaluate('heaptrace.flame.totals[0]'),
      blocks: await page.evaluate(`heaptrace.model.totals(heaptrace.flame.tree, heaptrace.state, 'blocks')[0]`),
    };
    await page.evaluate(`heaptrace.update({ view: 'table' })`);
    told.functions[column] = (await rows(page)).all;
  }
  await clickOn(page, '#course-note button');
  told.whole = await page.evaluate(`heaptrace.update({ view: 'flame', col: 'allocated' }) ?? heaptrace.flame.totals[0]`);
  return told;
}

const told = { reports: [] };
if (plan === 'use') told.reports.push(await use(files[0], files[1]));
else if (plan === 'window') told.reports.push(await part(files[0]));
else if (plan === 'time') told.reports.push(await time(files[0]));
else {
  for (const file of files) told.reports.push(await look(file));
}
told.problems = problems;
told.requests = requests.filter(url => !url.startsWith('file:'));
console.log(JSON.stringify(told));
await browser.end();
process.exit(0);
