'use strict';
// A streamed body that may have to be sent on another path after its first pieces were read.

/** The maximum of bytes of a body that are buffered until its call is accepted. */
const MAX_BUFFERED_BYTES = 1 << 20;

/** Buffers the first bytes of a body, so that another path can send it from the beginning. */
class ReplayableBody {
  #source;
  #buffered = []; // null: the body cannot be replayed
  #bytes = 0;
  #hasEnded = false;
  #lastRead = null;

  constructor(stream) {
    this.#source = stream[Symbol.asyncIterator]();
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** Drops the buffered bytes; called when the call is accepted. */
  dropBuffer() {
    this.#buffered = null;
  }

  /** Returns whether the whole body can be sent again. */
  get isReplayable() {
    return this.#buffered !== null;
  }

  /** Returns the whole body if it has ended and is buffered; else undefined. */
  get wholeBytes() {
    return this.#hasEnded && this.#buffered !== null ? Buffer.concat(this.#buffered) : undefined;
  }

  next() {
    this.#lastRead = this.#readSource();
    return this.#lastRead;
  }

  async #readSource() {
    const result = await this.#source.next();
    this.#hasEnded = result.done;
    if (this.#buffered === null || result.done) return result;
    this.#bytes += result.value.length;
    if (this.#bytes > MAX_BUFFERED_BYTES) this.#buffered = null;
    else this.#buffered.push(result.value);
    return result;
  }

  /** Ends the source, unless the body may have to be sent again. */
  async return() {
    return this.isReplayable ? { done: true, value: undefined } : this.#source.return();
  }

  /** Drops the body and ends its source. */
  discard() {
    this.#buffered = null;
    Promise.resolve(this.#source.return?.()).catch(() => {}); // the source may have failed already
  }

  /** Yields the whole body from the beginning. */
  async *replay() {
    await this.#lastRead?.catch(() => {});
    yield* this.#buffered;
    this.#buffered = null;
    yield* { [Symbol.asyncIterator]: () => this.#source };
  }
}

module.exports = { ReplayableBody };
