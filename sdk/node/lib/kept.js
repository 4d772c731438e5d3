'use strict';
// A body that comes bit by bit, and may have to be sent another way after its first pieces were taken.

/** The most that is kept of a body until it is known that its call was taken. */
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

  /** The call was taken: nothing is kept any more. */
  taken() {
    this.#taken = null;
  }

  /** Whether all of it can be sent again. */
  get whole() {
    return this.#taken !== null;
  }

  /** All of it, when it has come to its end and was kept; else nothing. */
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

  /** Who reads it has left: for good, unless it may have to be sent again. */
  async return() {
    return this.whole ? { done: true, value: undefined } : this.#source.return();
  }

  /** Nobody wants it any more. */
  leave() {
    this.#taken = null;
    Promise.resolve(this.#source.return?.()).catch(() => {}); // it may have failed already
  }

  /** All of it from the beginning. */
  async *again() {
    await this.#next?.catch(() => {});
    yield* this.#taken;
    this.#taken = null;
    yield* { [Symbol.asyncIterator]: () => this.#source };
  }
}

module.exports = { Kept };
