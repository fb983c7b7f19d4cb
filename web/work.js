// Work that takes longer than a moment, in slices: between them the browser hears and draws. Such work is a generator that yields after each part.

// So long is a slice, in milliseconds. A gesture has 16, and the browser needs some of them.
const SLICE = 5;

// After so much of a slice its result is shown in the next one.
const LATE = 2;

export class Work {
  constructor() {
    this.channel = new MessageChannel();
    this.channel.port1.onmessage = () => this.slice();
    this.steps = null;
    this.waiting = [];
  }

  // Begins in place of what was going on. `done` is called with what `steps` returns: at once, if that takes a moment only. `wait` is called if it does not.
  begin(steps, done, wait) {
    Object.assign(this, { steps, done });
    if (!this.slice()) wait();
  }

  // Leaves it.
  stop() {
    this.steps = null;
    this.waiting.splice(0).forEach(tell => tell());
  }

  // Whether all is done after one more slice.
  slice() {
    const { steps } = this;
    if (steps === null) return true;
    const begun = performance.now();
    for (;;) {
      const { done, value } = this.next(steps);
      const taken = performance.now() - begun;
      if (done && taken < LATE) {
        this.steps = null;
        this.done(value);
        this.waiting.splice(0).forEach(tell => tell());
        return true;
      }
      if (done) this.steps = returning(value);
      if (done || taken >= SLICE) {
        this.channel.port2.postMessage(null);
        return false;
      }
    }
  }

  // What fails is not tried again.
  next(steps) {
    try {
      return steps.next();
    } catch (error) {
      this.steps = null;
      throw error;
    }
  }

  // When nothing is going on.
  async settled() {
    while (this.steps !== null) await new Promise(resolve => this.waiting.push(resolve));
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
