'use strict';
// Bodies that are read or written bit by bit: one part is under way at a time.

const { NearpathError, bytes } = require('./words');

class Bodies {
  #native;
  #changed;
  #waiting = new Map(); // who waits for a part, or for room, by body

  constructor(native, changed) {
    this.#native = native;
    this.#changed = changed;
  }

  /** Whether somebody waits here. */
  get busy() {
    return this.#waiting.size > 0;
  }

  told(message) {
    const key = this.#key(message.room === undefined ? 'read' : 'write', message.id, message.taken);
    this.#waiting.get(key)?.(message);
    this.#waiting.delete(key);
  }

  /** Who waits for a call's bodies waits no more. */
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

  /** A body as it comes. Leaving a loop over it tells its writer that nobody reads. A signal ends it; `done` is told of its end. */
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

  /** Writes a body as its pieces are made, until nobody wants more. What is thrown breaks it off. */
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
