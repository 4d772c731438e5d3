'use strict';
// Streamed bodies: one part of each is in transit at a time.

const { NearpathError } = require('./errors');
const { toBytes } = require('./messages');

/** Streamed bodies of all calls. `isIncoming` is true for the body of a received call, false for that of an outgoing one. */
class BodyStreams {
  #getNative;
  #onChange;
  #pending = new Map(); // resolvers of pending reads and writes, by body

  constructor(getNative, onChange) {
    this.#getNative = getNative;
    this.#onChange = onChange;
  }

  /** Returns whether a read or a write is pending. */
  get isBusy() {
    return this.#pending.size > 0;
  }

  /** Ends the pending read or write to which a message belongs. */
  handleMessage(message) {
    const key = this.#key(message.wantsMore === undefined ? 'read' : 'write', message.id, message.isIncoming);
    this.#pending.get(key)?.(message);
    this.#pending.delete(key);
  }

  /** Ends the pending reads and writes of an outgoing call. */
  cancel(id) {
    this.handleMessage({ id, isIncoming: false });
    this.handleMessage({ id, isIncoming: false, wantsMore: false });
  }

  #key(operation, id, isIncoming) {
    return `${operation} ${isIncoming} ${id}`;
  }

  /** Sends a command and waits for the message that answers it. */
  #request(operation, id, isIncoming, sendCommand) {
    return new Promise((resolve) => {
      this.#pending.set(this.#key(operation, id, isIncoming), resolve);
      this.#onChange();
      sendCommand(this.#getNative());
    });
  }

  /** Streams a received body. Leaving a loop over it notifies its writer. A signal ends it; `onEnd` is called at its end. */
  read(id, isIncoming, signal, onEnd = () => {}) {
    let hasEnded = false;
    const next = async () => {
      if (hasEnded) return { done: true, value: undefined };
      signal?.throwIfAborted();
      const { part, error } = await this.#request('read', id, isIncoming, (native) => native.requestPart(id, isIncoming));
      if (part) return { done: false, value: part };
      hasEnded = true;
      onEnd();
      signal?.throwIfAborted();
      if (error) throw new NearpathError(error);
      return { done: true, value: undefined };
    };
    const close = async () => {
      if (!hasEnded) this.#getNative().closeBody(id, isIncoming);
      hasEnded = true;
      onEnd();
      return { done: true, value: undefined };
    };
    return { next, return: close, [Symbol.asyncIterator]() { return this; } };
  }

  /** Streams the pieces of a body until the receiver takes no more. An exception aborts the body. */
  async write(id, isIncoming, pieces) {
    const iterator = pieces[Symbol.asyncIterator]?.() ?? pieces[Symbol.iterator]();
    try {
      for (let wantsMore = true; wantsMore; ) {
        const { value, done } = await iterator.next();
        if (done) return void this.#getNative().writePiece(id, isIncoming, null);
        const piece = toBytes(value);
        ({ wantsMore } = await this.#request('write', id, isIncoming, (native) => native.writePiece(id, isIncoming, piece)));
      }
    } catch (error) {
      this.#getNative().abortBody(id, isIncoming, String(error));
      throw error;
    }
    await iterator.return?.();
    return undefined;
  }
}

module.exports = { BodyStreams };
