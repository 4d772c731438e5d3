'use strict';
// A streamed body that may have to be sent on another path after its first pieces were read.

/** The maximum of bytes that are kept of a body until its call is accepted. */
const MOST = 1 << 20;

class Kept {
  #source;
  #taken = [];
  #bytes = 0;
  #ended = false;
  #next = null;

  constructor(stream) {
    this.#source = stream[Symbol.asyncIterator]();
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Called when the call is accepted: drops the kept bytes. */
  taken() {
    this.#taken = null;
  }

  /** Whether the whole body can be sent again. */
  get whole() {
    return this.#taken !== null;
  }

  /** The whole body if it has ended and was kept; else undefined. */
  get all() {
    return this.#ended && this.#taken !== null ? Buffer.concat(this.#taken) : undefined;
  }

  next() {
    this.#next = this.#step();
    return this.#next;
  }

  async #step() {
    const step = await this.#source.next();
    this.#ended = step.done;
    if (this.#taken === null || step.done) return step;
    this.#bytes += step.value.length;
    if (this.#bytes > MOST) this.#taken = null;
    else this.#taken.push(step.value);
    return step;
  }

  /** Ends the source, unless the body may have to be sent again. */
  async return() {
    return this.whole ? { done: true, value: undefined } : this.#source.return();
  }

  /** Drops the body and ends its source. */
  leave() {
    this.#taken = null;
    Promise.resolve(this.#source.return?.()).catch(() => {}); // the source may have failed already
  }

  /** Yields the whole body from the beginning. */
  async *again() {
    await this.#next?.catch(() => {});
    yield* this.#taken;
    this.#taken = null;
    yield* { [Symbol.asyncIterator]: () => this.#source };
  }
}

module.exports = { Kept };
