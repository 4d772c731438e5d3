'use strict';
// JavaScript's side of the native half: numbers of calls, promises, and handlers that run.

const { AsyncLocalStorage } = require('node:async_hooks');
const { NearpathError, bytes, inTurn, object, answer, failed } = require('./words');

const SERVED = -1;

class Half {
  #native = null;
  #last = 0;
  #calls = new Map(); // made here, by number
  #open = new Map(); // taken here: what tells a handler that its caller no longer waits
  #running = new AsyncLocalStorage(); // the number of the call whose handler runs
  #served = null;
  #awake = null;

  /** Opened with the first call: a process that only asks for types has no thread. */
  #opened(serves) {
    if (this.#native === null || serves) {
      this.#native ??= require(process.env.NEARPATH_NODE_NATIVE ?? '../nearpath.node');
      this.#native.open((message) => this.#told(message), serves);
    }
    return this.#native;
  }

  async call(name, payload, how = {}, event) {
    const { method, path, headers, deadline, idempotent, nearOnly } = how;
    const parent = this.#running.getStore();
    const ask = { method, path, headers: inTurn(headers), deadline, idempotent, nearOnly, parent };
    const body = bytes(payload);
    const native = this.#opened(false);
    const id = ++this.#last;
    return new Promise((resolve, reject) => {
      this.#calls.set(id, { resolve, reject });
      this.#stayAwake();
      native.call(id, String(name), body, ask, event);
    });
  }

  serve(handler) {
    if (typeof handler !== 'function') throw new TypeError('serve wants a function');
    if (this.#served) throw new Error('this process serves already');
    return new Promise((resolve, reject) => {
      const stop = () => this.#native.stop();
      const done = (settle) => (value) => {
        for (const name of ['SIGTERM', 'SIGINT']) process.removeListener(name, stop);
        this.#served = null;
        settle(value);
      };
      this.#served = { handler, resolve: done(resolve), reject: done(reject) };
      this.#opened(true);
      this.#stayAwake();
      for (const name of ['SIGTERM', 'SIGINT']) process.on(name, stop);
    });
  }

  #told(message) {
    if (message.id === SERVED) this.#over(message.error);
    else if (message.request) this.#take(message.id, message.request);
    else if (message.givenUp) this.#open.get(message.id)?.abort();
    else this.#settle(message);
    this.#stayAwake();
  }

  #over(error) {
    if (error) this.#served.reject(new NearpathError(error));
    else this.#served.resolve();
  }

  #settle({ id, response, error }) {
    const { resolve, reject } = this.#calls.get(id);
    this.#calls.delete(id);
    if (error) return reject(new NearpathError(error));
    const { status, headers, body, path, instance } = response;
    resolve({ status, headers: object(headers), body, path: path ?? null, instance: instance ?? null });
  }

  async #take(id, { headers, timeLeft, caller, ...request }) {
    const given = new AbortController();
    this.#open.set(id, given);
    Object.assign(request, { headers: object(headers), timeLeft: timeLeft ?? null, caller: caller ?? null });
    Object.defineProperty(request, 'signal', { get: () => given.signal });
    let response;
    try {
      response = answer(await this.#running.run(id, () => this.#served.handler(request)));
    } catch (error) {
      response = failed(error);
    }
    this.#open.delete(id);
    this.#native.answer(id, response);
  }

  /** The native half keeps no process alive; something that is open does. */
  #stayAwake() {
    const busy = this.#calls.size > 0 || this.#served !== null;
    if (busy && this.#awake === null) this.#awake = setInterval(() => {}, 0x7fffffff);
    if (!busy && this.#awake !== null) {
      clearInterval(this.#awake);
      this.#awake = null;
    }
  }
}

module.exports = { Half };
