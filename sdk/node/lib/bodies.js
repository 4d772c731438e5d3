'use strict';
// Streamed bodies: one part of each is in transit at a time.

const { NearpathError, bytes } = require('./words');

class Bodies {
  #native;
  #changed;
  #waiting = new Map(); // resolvers of pending reads and writes, by body

  constructor(native, changed) {
    this.#native = native;
    this.#changed = changed;
  }

  /** Whether a read or a write is pending. */
  get busy() {
    return this.#waiting.size > 0;
  }

  told(message) {
    const key = this.#key(message.room === undefined ? 'read' : 'write', message.id, message.taken);
    this.#waiting.get(key)?.(message);
    this.#waiting.delete(key);
  }

  /** Ends the pending reads and writes of a call. */
  giveUp(id) {
    this.told({ id, taken: false });
    this.told({ id, taken: false, room: false });
  }

  #key(what, id, taken) {
    return `${what} ${taken} ${id}`;
  }

  #told(what, id, taken, order) {
    return new Promise((resolve) => {
      this.#waiting.set(this.#key(what, id, taken), resolve);
      this.#changed();
      order(this.#native());
    });
  }

  /** Streams a received body. Leaving a loop over it notifies its writer. A signal ends it; `done` is called at its end. */
  read(id, taken, signal, done = () => {}) {
    let over = false;
    const next = async () => {
      if (over) return { done: true, value: undefined };
      signal?.throwIfAborted();
      const { part, error } = await this.#told('read', id, taken, (native) => native.pull(id, taken));
      if (part) return { done: false, value: part };
      over = true;
      done();
      signal?.throwIfAborted();
      if (error) throw new NearpathError(error);
      return { done: true, value: undefined };
    };
    const leave = async () => {
      if (!over) this.#native().leave(id, taken);
      over = true;
      done();
      return { done: true, value: undefined };
    };
    return { next, return: leave, [Symbol.asyncIterator]() { return this; } };
  }

  /** Streams the pieces of a body until the receiver takes no more. An exception aborts the body. */
  async write(id, taken, pieces) {
    const iterator = pieces[Symbol.asyncIterator]?.() ?? pieces[Symbol.iterator]();
    try {
      for (let wanted = true; wanted; ) {
        const { value, done } = await iterator.next();
        if (done) return void this.#native().push(id, taken, null);
        const piece = bytes(value);
        wanted = (await this.#told('write', id, taken, (native) => native.push(id, taken, piece))).room;
      }
    } catch (error) {
      this.#native().breakOff(id, taken, String(error));
      throw error;
    }
    await iterator.return?.();
    return undefined;
  }
}

module.exports = { Bodies };
