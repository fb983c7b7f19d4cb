// Opens a page of heaptrace in Chromium without a window, and saves its upper part as a picture.
// node --experimental-websocket docs/picture/screenshot.mjs CHROMIUM PAGE.html PICTURE.webp
import { writeFileSync } from 'node:fs';
import { pathToFileURL } from 'node:url';
import { Browser } from '../../tests/support/browser.mjs';

// The part of the page that is saved, in CSS pixels. GitHub shows it some 900 wide: 1.5 pixels of the file for each are
// enough.
const WIDTH = 1280;
const HEIGHT = 1030;
// What the browser shows at once: the graph has 220 less, and begins with the callers of what it is zoomed to.
const WINDOW_HEIGHT = 520;
const MAX_BYTES = 200 * 1024;

const [chromium, file, picture] = process.argv.slice(2);
const browser = await Browser.start(chromium);
const page = await browser.open(pathToFileURL(file).href, async page => {
  await page.call('Page.enable');
  await page.call('Emulation.setScrollbarsHidden', { hidden: true });
  await page.call('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: 'light' }] });
  await page.call('Emulation.setDeviceMetricsOverride', { width: WIDTH, height: WINDOW_HEIGHT, deviceScaleFactor: 1.5, mobile: false });
});
await page.until('the report', 'document.documentElement.dataset.ready');
await page.evaluate('heaptrace.settled().then(() => true)');
// Frames that nearly all bytes go through say nothing: zoom to where the calls part.
await page.evaluate(`(() => {
  const { tree, totals } = heaptrace.flame;
  let node = 0;
  for (let child = 1; child < tree.end[node];) {
    if (tree.parent[child] === node && totals[child] > 0.9 * totals[0]) node = child++;
    else child = tree.end[child];
  }
  return heaptrace.update({ zoom: node });
})()`);
await page.evaluate('heaptrace.settled().then(() => true)');
const { data } = await page.call('Page.captureScreenshot', {
  format: 'webp', quality: 80, captureBeyondViewport: true, clip: { x: 0, y: 0, width: WIDTH, height: HEIGHT, scale: 1 },
});
await browser.end();
const bytes = Buffer.from(data, 'base64');
if (bytes.length > MAX_BYTES) throw new Error(`${picture} would have ${bytes.length} bytes, more than ${MAX_BYTES}`);
writeFileSync(picture, bytes);
