// Chromium without a window, driven over its DevTools protocol.
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

// So often a condition is looked at, and so long apart, in milliseconds.
const ROUNDS = 600;
const PAUSE = 100;

export class Browser {
  static async start(chromium) {
    const browser = new Browser();
    browser.profile = mkdtempSync(join(tmpdir(), 'chromium-'));
    browser.process = spawn(chromium, ['--headless', '--no-sandbox', '--disable-gpu', '--window-size=1400,900', '--remote-debugging-port=0', `--user-data-dir=${browser.profile}`, 'about:blank'], { stdio: ['ignore', 'ignore', 'pipe'] });
    process.on('exit', () => browser.process.kill('SIGKILL'));
    const address = await new Promise((resolve, reject) => {
      let said = '';
      browser.process.stderr.on('data', data => {
        said += data;
        const found = said.match(/DevTools listening on (ws:\S+)/);
        if (found) resolve(found[1]);
      });
      browser.process.on('exit', () => reject(new Error(said)));
    });
    browser.socket = new WebSocket(address);
    await new Promise((resolve, reject) => { browser.socket.onopen = resolve; browser.socket.onerror = reject; });
    browser.waiting = new Map();
    browser.last = 0;
    browser.heard = () => {};
    browser.socket.onmessage = message => {
      const answer = JSON.parse(message.data);
      if (answer.id === undefined) browser.heard(answer);
      else browser.waiting.get(answer.id)?.(answer);
    };
    return browser;
  }

  call(method, params = {}, sessionId = undefined) {
    return new Promise((resolve, reject) => {
      const id = ++this.last;
      this.waiting.set(id, answer => answer.error ? reject(new Error(`${method}: ${JSON.stringify(answer.error)}`)) : resolve(answer.result));
      this.socket.send(JSON.stringify({ id, method, params, sessionId }));
    });
  }

  // A page at this address. `prepare` is called with it before it loads.
  async open(url, prepare = async () => {}) {
    const { targetId } = await this.call('Target.createTarget', { url: 'about:blank' });
    const { sessionId } = await this.call('Target.attachToTarget', { targetId, flatten: true });
    const page = new Page(this, sessionId);
    await prepare(page);
    await page.call('Page.navigate', { url });
    return page;
  }

  async end() {
    this.socket.close();
    this.process.removeAllListeners('exit');
    this.process.kill('SIGKILL');
    await new Promise(resolve => this.process.on('close', resolve));
    rmSync(this.profile, { recursive: true, force: true });
  }
}

export class Page {
  constructor(browser, sessionId) {
    Object.assign(this, { browser, sessionId });
  }

  call(method, params = {}) {
    return this.browser.call(method, params, this.sessionId);
  }

  // The value of an expression, or of its promise.
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.call('Runtime.evaluate', { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(JSON.stringify(exceptionDetails));
    return result.value;
  }

  // The value of an expression, as soon as it has one that counts as true.
  async until(what, expression) {
    for (let round = 0; round < ROUNDS; round++) {
      try {
        const value = await this.evaluate(expression);
        if (value) return value;
      } catch (error) {
        if (round === ROUNDS - 1) throw error;
      }
      await new Promise(resolve => setTimeout(resolve, PAUSE));
    }
    throw new Error(`never: ${what}`);
  }
}
