// Opens reports of heaptrace (.html) in Chromium without a window, uses them as a person does, and prints what is read
// back as JSON. node --experimental-websocket open_report.mjs CHROMIUM PLAN FILE... PLAN is `window`: parts of the time
// of a file that knows them; `use`: every view of one file; `look`: only what is there at first, of each file;
// `source`: the source of a function; `difference`: a page of a difference; `course`: the course of live bytes; `time`:
// how long the first file takes.
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

// Waits until the views show what was asked for.
const settled = page => page.evaluate('heaptrace.settled().then(() => true)');

// Changes what the page shows, as its buttons do.
async function update(page, changes) {
  await page.evaluate(`heaptrace.update(${JSON.stringify(changes)})`);
  await settled(page);
}

const words = page => page.evaluate(`[...document.querySelectorAll('#words .word')].map(word => [...word.children].map(part => part.textContent).join(': '))`);
const text = async (page, selector) => (await settled(page)) && page.evaluate(`document.querySelector(${JSON.stringify(selector)}).textContent`);

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
const rows = async page => (await settled(page)) && page.evaluate(`({
  all: [...heaptrace.table.order].map(row => heaptrace.table.rows.at(row)).map(({ name, whole, self, total, blocks, mean, temporary }) => ({ name: whole ?? name, self, total, blocks, mean, temporary })),
  shown: [...document.querySelectorAll('#rows tbody tr:not(.space, .off, [hidden])')].map(row => [...row.cells].map(cell => cell.textContent)),
  headings: [...document.querySelectorAll('#rows thead th')].map(cell => cell.textContent),
})`);

// Where on the page a function is drawn: the middle of its first frame.
const placeOf = (page, name) => page.evaluate(`(() => {
  const { flame, data } = heaptrace;
  const box = flame.canvas.getBoundingClientRect();
  for (let depth = 0; depth < flame.rows.length; depth++) {
    const row = flame.rows[depth];
    const at = row ? row.node.subarray(0, row.n).findIndex(node => node > 0 && data.strings[flame.tree.func[node]] === ${JSON.stringify(name)}) : -1;
    if (at >= 0) return [box.x + row.x[at] + row.w[at] / 2, box.y + depth * 20 + 10 - flame.scroll.scrollTop];
  }
  return null;
})()`);

// A pixel of the course, high up at `x`. It is read from a copy: browsers warn of canvases that are read again and
// again.
const pixelOfCourse = (page, x) => page.evaluate(`(() => {
  const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  copy.drawImage(heaptrace.timeline.canvas, ${Math.round(x)}, 14, 1, 1, 0, 0, 1, 1);
  return [...copy.getImageData(0, 0, 1, 1).data];
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
    await settled(page);
    told.columns[column] = {
      status: await text(page, '#status'),
      pressed: await text(page, '#columns [aria-pressed=true]'),
      bytes: await page.evaluate(`heaptrace.flame.totals[0]`),
      blocks: await page.evaluate(`heaptrace.model.totals(heaptrace.flame.tree, heaptrace.state, 'blocks')[0]`),
    };
  }
  // a click zooms, and the address that it makes opens the same
  await press(page, '1');
  await settled(page);
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
  await update(page, { q: '' });
  await press(page, 'Escape');
  // callers and callees of a function
  told.modes = {};
  for (const mode of ['flame', 'callers', 'callees']) {
    await update(page, { mode, fn: mode === 'flame' ? '' : name });
    told.modes[mode] = {
      bytes: await page.evaluate('heaptrace.flame.totals[0]'),
      functions: await page.evaluate(`[...heaptrace.flame.tree.func].slice(1).map(func => heaptrace.data.strings[func])`),
    };
  }
  await update(page, { mode: 'icicle', fn: '', hide: name });
  told.hidden = await page.evaluate(`({ bytes: heaptrace.flame.totals[0], functions: [...heaptrace.flame.tree.func].slice(1).map(func => heaptrace.data.strings[func]) })`);
  await update(page, { hide: '' });
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
  // the same rows in blocks
  await update(page, { col: 'allocated' });
  await press(page, 'b');
  told.inBlocks = await rows(page);
  await press(page, 'b');
  await clickOn(page, '#rows [data-key=name] button');
  told.byName = (await rows(page)).all.map(row => row.name);
  told.csv = await page.evaluate('(() => { const steps = heaptrace.csv(); for (;;) { const { done, value } = steps.next(); if (done) return value; } })()');
  // a part of the time
  const box = await page.evaluate(`(() => { window.scrollTo(0, 0); const { x, y, width } = document.getElementById('timeline').getBoundingClientRect(); return [x, y, width]; })()`);
  await mouse(page, 'mouseMoved', box[0] + box[2] * 0.3, box[1] + 50);
  // a click of an unsteady hand chooses nothing, and leaves nothing veiled
  const veiled = [await pixelOfCourse(page, box[2] * 0.95)];
  await mouse(page, 'mousePressed', box[0] + box[2] * 0.3, box[1] + 50);
  await mouse(page, 'mouseMoved', box[0] + box[2] * 0.3 + 2, box[1] + 50);
  veiled.push(await pixelOfCourse(page, box[2] * 0.95));
  await mouse(page, 'mouseReleased', box[0] + box[2] * 0.3 + 2, box[1] + 50);
  await settled(page);
  veiled.push(await pixelOfCourse(page, box[2] * 0.95));
  told.veiled = veiled;
  await mouse(page, 'mousePressed', box[0] + box[2] * 0.3, box[1] + 50);
  await mouse(page, 'mouseMoved', box[0] + box[2] * 0.8, box[1] + 50);
  await mouse(page, 'mouseReleased', box[0] + box[2] * 0.8, box[1] + 50);
  told.brushed = await text(page, '#course-note');
  told.counted = await page.evaluate('heaptrace.timeline.rates.reduce((sum, rate) => sum + rate, 0) * heaptrace.timeline.end / heaptrace.timeline.rates.length / 1e9');
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
    await update(page, { view });
    told[view] = await text(page, `#${view}`);
  }
  if (await page.evaluate(`document.querySelector('#views [data-value=tests]') !== null`)) {
    await clickOn(page, '#views [data-value=tests]');
    told.tests = await text(page, '#tests');
  }
  await update(page, { view: 'table', col: 'live' });
  told.live = (await rows(page)).all;
  told.marks = await page.evaluate('heaptrace.timeline.marks');
  // what only markup of others could have made
  told.foreign = await page.evaluate(`document.querySelectorAll('img, iframe, object, embed, link, base, form, svg, script:not([type])').length`);
  told.scripts = await page.evaluate('document.scripts.length');
  told.owned = await page.evaluate('String(window.owned)');
  return told;
}

// The lines of source that are shown of a function on which one clicks.
async function source(file, name) {
  const page = await opened(pathToFileURL(file).href);
  await update(page, { col: 'allocated' });
  const before = await page.evaluate(`document.getElementById('source').hidden`);
  await click(page, ...await placeOf(page, name));
  await settled(page);
  return {
    before,
    titles: await page.evaluate(`[...document.querySelectorAll('#source h3')].map(title => title.textContent)`),
    rows: await page.evaluate(`[...document.querySelectorAll('#source tr')].map(row => [...row.cells].map(cell => cell.textContent))`),
    held: await page.evaluate('heaptrace.data.words.source.files.length'),
  };
}

// What a page of a difference tells: sums of its columns, what functions and sites had and have, and the colours of
// functions.
async function difference(file, names) {
  const page = await opened(pathToFileURL(file).href);
  const told = { title: await page.evaluate('document.title'), program: await text(page, '#program'), words: await words(page), first: await text(page, '#columns [aria-pressed=true]'), columns: {}, rows: {} };
  told.views = await page.evaluate(`[...document.querySelectorAll('#views button')].map(button => button.textContent)`);
  told.sections = await page.evaluate(`[...document.querySelectorAll('#view > section:not([hidden])')].map(section => section.id)`);
  told.hasCourse = await page.evaluate(`!document.getElementById('course').hidden`);
  told.legend = await page.evaluate(`[...document.querySelectorAll('#legend span')].map(part => part.textContent)`);
  for (const column of await page.evaluate('heaptrace.columnNames')) {
    await update(page, { col: column });
    told.columns[column] = [await page.evaluate('heaptrace.flame.totals[0]'), await page.evaluate(`heaptrace.model.totals(heaptrace.flame.tree, heaptrace.state, 'blocks')[0]`)];
  }
  // after, where all but one can be seen
  await update(page, { col: 'after' });
  told.colors = {};
  for (const name of names) {
    const place = await placeOf(page, name);
    if (place === null) continue;
    await mouse(page, 'mouseMoved', ...place);
    told.colors[name] = await page.evaluate(`(() => {
      const { canvas } = heaptrace.flame;
      const box = canvas.getBoundingClientRect();
      const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
      copy.drawImage(canvas, ${place[0]} - box.x, ${place[1]} - box.y - 8, 1, 1, 0, 0, 1, 1);
      return [...copy.getImageData(0, 0, 1, 1).data];
    })()`);
    told.tip = await text(page, '#tip');
  }
  for (const by of ['function', 'site']) {
    await update(page, { view: 'table', by, col: by === 'site' ? 'before' : 'after', sort: 'change' });
    told.rows[by] = await page.evaluate(`[...heaptrace.table.order].map(row => heaptrace.table.rows.at(row)).map(({ name, before, after, change }) => [name.split(' ')[0], before, after, change])`);
  }
  told.headings = (await rows(page)).headings;
  told.shown = (await rows(page)).shown[0];
  return told;
}

// Milliseconds until the report is there; of each gesture until the page hears and has drawn again, and until all is
// there.
async function time(file) {
  const page = await opened(pathToFileURL(file).href);
  const ready = Number(await page.evaluate('document.documentElement.dataset.ready'));
  await new Promise(resolve => setTimeout(resolve, 1500));
  const gestures = await page.evaluate(`(async () => {
    const taken = {};
    const pause = () => new Promise(resolve => setTimeout(resolve, 60));
    const rounded = times => times.map(time => Math.round(time * 10) / 10);
    const gesture = async (name, act) => {
      const [times, whole] = [[], []];
      for (let i = 0; i < 8; i++) {
        await pause();
        const begun = performance.now();
        act(i);
        // makes the browser draw, and lay out
        heaptrace.flame.canvas.getContext('2d').getImageData(0, 0, 1, 1);
        document.body.offsetHeight;
        times.push(performance.now() - begun);
        await heaptrace.settled();
        whole.push(performance.now() - begun);
      }
      taken[name] = { times: rounded(times), whole: rounded(whole) };
    };
    const update = async changes => {
      heaptrace.update(changes);
      await heaptrace.settled();
    };
    const first = heaptrace.flame.tree;
    const deep = [...first.depth.keys()].filter(i => first.depth[i] > 4).filter((_, i) => i % 500 === 0).slice(0, 8);
    const names = deep.map(node => heaptrace.data.strings[first.func[node]]);
    await gesture('draw', () => heaptrace.flame.draw());
    await gesture('column', i => heaptrace.update({ col: heaptrace.columnNames[i % heaptrace.columnNames.length] }));
    await gesture('zoom', i => heaptrace.update({ zoom: i < 4 ? first.depth.indexOf(i + 1) : deep[i] }));
    await update({ zoom: 0 });
    await gesture('search', i => heaptrace.update({ q: 'method' + (10 + i) }));
    await update({ q: '' });
    await gesture('flame', i => heaptrace.update({ mode: i % 2 ? 'icicle' : 'flame' }));
    await gesture('callers', i => heaptrace.update({ mode: 'callers', fn: names[i] }));
    await gesture('callees', i => heaptrace.update({ mode: 'callees', fn: i < 4 ? heaptrace.data.strings[first.func[i + 1]] : names[i] }));
    await gesture('bottom-up', i => heaptrace.update({ mode: 'callers', fn: '', col: heaptrace.columnNames[i % heaptrace.columnNames.length] }));
    await update({ mode: 'icicle', fn: '' });
    await gesture('merge', i => heaptrace.update({ merge: i % 2 === 0 }));
    await update({ merge: false });
    await gesture('hide', i => heaptrace.update({ hide: 'method' + (20 + i) }));
    await update({ hide: '' });
    await update({ view: 'table' });
    await gesture('sort', i => heaptrace.update({ down: i % 2 === 0 }));
    await gesture('group', i => heaptrace.update({ by: ['file', 'module', 'thread', 'function'][i % 4] }));
    await gesture('sites', i => heaptrace.update({ by: i % 2 ? 'function' : 'site', col: heaptrace.columnNames[i >> 1] }));
    await update({ by: 'site' });
    await gesture('sort sites', i => heaptrace.update({ sort: ['name', 'blocks', 'mean', 'place', 'temporary', 'self'][i % 6] }));
    await gesture('search sites', i => heaptrace.update({ q: 'method' + (10 + i) }));
    return taken;
  })()`);
  return { ready, nodes: await page.evaluate('heaptrace.model.first.n'), sites: await page.evaluate('heaptrace.data.sites.node.length'), gestures };
}

// What the views show of the middle third of the time: its bounds, and the sums of each column.
async function part(file) {
  const page = await opened(pathToFileURL(file).href);
  const moments = await page.evaluate('heaptrace.data.heaps.map(heap => heap.t)');
  // so much of the middle that something is allocated in it, whenever the program had to wait
  const [from, to] = [moments[Math.floor(moments.length / 6)], moments[Math.floor(moments.length * 5 / 6)]];
  await update(page, { from, to });
  const told = { from, to, moments: moments.length, note: await text(page, '#course-note'), columns: {}, functions: {} };
  for (const column of ['live', 'allocated', 'freed', 'peak']) {
    await update(page, { view: 'flame', col: column });
    told.columns[column] = {
      status: await text(page, '#status'),
      bytes: await page.evaluate('heaptrace.flame.totals[0]'),
      blocks: await page.evaluate(`heaptrace.model.totals(heaptrace.flame.tree, heaptrace.state, 'blocks')[0]`),
    };
    await update(page, { view: 'table' });
    told.functions[column] = (await rows(page)).all;
  }
  await clickOn(page, '#course-note button');
  await update(page, { view: 'flame', col: 'allocated' });
  told.whole = await page.evaluate('heaptrace.flame.totals[0]');
  return told;
}

// The course of live bytes as it is drawn, without the resident memory: between any two events, in the middle, whether
// there is colour right above the live bytes and right below them; the rate's bars; and what is said of moments.
async function course(file) {
  const page = await opened(pathToFileURL(file).href);
  return page.evaluate(`(() => {
    const course = heaptrace.timeline;
    const resident = course.resident;
    course.resident = [];
    course.draw();
    const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
    const hasColor = (time, y) => {
      copy.clearRect(0, 0, 1, 1);
      copy.drawImage(course.canvas, Math.round(course.x(time)), Math.round(y), 1, 1, 0, 0, 1, 1);
      return copy.getImageData(0, 0, 1, 1).data[3] > 0;
    };
    const points = [{ t_ns: 0, live_bytes: 0 }, ...course.points, { t_ns: heaptrace.data.report.duration_ns }];
    const between = points.slice(1).map((next, i) => [(points[i].t_ns + next.t_ns) / 2, points[i].live_bytes]);
    return {
      resident,
      duration: heaptrace.data.report.duration_ns,
      between: between.map(([time, bytes]) => ({ time, bytes, above: hasColor(time, course.y(bytes) - 4), below: bytes > 0 && hasColor(time, course.y(bytes) + 4), said: course.tellMoment(course.x(time)) })),
      bars: [...course.rates].map((rate, part) => ({ from: part * course.end / course.rates.length, to: (part + 1) * course.end / course.rates.length, rate })).filter(({ rate }) => rate > 0),
      words: [...document.querySelectorAll('#words .word')].map(word => word.textContent),
    };
  })()`);
}

const told = { reports: [] };
if (plan === 'use') told.reports.push(await use(files[0], files[1]));
else if (plan === 'window') told.reports.push(await part(files[0]));
else if (plan === 'source') told.reports.push(await source(files[0], files[1]));
else if (plan === 'difference') told.reports.push(await difference(files[0], files.slice(1)));
else if (plan === 'course') told.reports.push(await course(files[0]));
else if (plan === 'time') told.reports.push(await time(files[0]));
else {
  for (const file of files) told.reports.push(await look(file));
}
told.problems = problems;
told.requests = requests.filter(url => !url.startsWith('file:'));
console.log(JSON.stringify(told));
await browser.end();
process.exit(0);
