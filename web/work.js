// Work that takes longer than a moment, in slices: between them the browser hears and draws. Such work is a generator
// that yields after each part.

// So long is a slice, in milliseconds. A gesture has 16, and the browser needs some of them.
const SLICE = 5;

// After so much of a slice its result is shown in the next one.
const LATE = 2;

export class Work {
  constructor() {
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => {
      this.posted = false;
      this.slice();
    };
    // Whether a message is on its way. It serves whatever is going on when it comes.
    this.posted = false;
    this.steps = null;
    this.waiting = [];
  }

  // Begins in place of what was going on. `done` is called with what `steps` returns: at once, if that takes a moment
  // only. `wait` is called if it does not. `fail` is called with what `steps` or `done` throw, whenever that is; they
  // are not tried again.
  begin(steps, done, wait, fail) {
    Object.assign(this, { steps, done, fail });
    if (!this.slice()) wait();
  }

  // Leaves it.
  stop() {
    this.steps = null;
    this.waiting.splice(0).forEach(({ resolve }) => resolve());
  }

  // Whether all is over after one more slice.
  slice() {
    try {
      return this.isDone();
    } catch (error) {
      this.steps = null;
      this.waiting.splice(0).forEach(({ reject }) => reject(error));
      this.fail(error);
      return true;
    }
  }

  // Whether all is done after one more slice.
  isDone() {
    const { steps } = this;
    if (steps === null) return true;
    const begun = performance.now();
    for (;;) {
      const { done, value } = steps.next();
      const taken = performance.now() - begun;
      if (done && taken < LATE) {
        this.steps = null;
        this.done(value);
        this.waiting.splice(0).forEach(({ resolve }) => resolve());
        return true;
      }
      if (done) this.steps = returning(value);
      if (done || taken >= SLICE) {
        this.post();
        return false;
      }
    }
  }

  // Asks for the next slice.
  post() {
    if (this.posted) return;
    this.posted = true;
    this.channel.port2.postMessage(null);
  }

  // When nothing is going on; rejected if what was going on fails.
  async settled() {
    while (this.steps !== null) await new Promise((resolve, reject) => this.waiting.push({ resolve, reject }));
  }
}

// A generator that returns this at once.
function* returning(value) {
  return value;
}

// What a generator returns, without pauses.
export function finished(steps) {
  for (;;) {
    const { done, value } = steps.next();
    if (done) return value;
  }
}

// So many members of lists are gone through between two pauses, where there is little to do for each.
const PART_OF_LIST = 1 << 15;

// Calls `work` for each part of what has `n` members, as from and to, with pauses.
export function* inParts(n, work) {
  for (let from = 0; from < n; from += PART_OF_LIST) {
    work(from, Math.min(n, from + PART_OF_LIST));
    yield;
  }
}
