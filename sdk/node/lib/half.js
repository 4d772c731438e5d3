'use strict';
// The JavaScript side of the native module: call numbers, promises and running handlers.

const { AsyncLocalStorage } = require('node:async_hooks');
const { Bodies } = require('./bodies');
const { NearpathError, bytes, inPairs, inTurn, isPieces, object, answer, failed } = require('./words');

const SERVED = -1;

class Half {
  #native = null;
  #last = 0;
  #calls = new Map(); // promises of outgoing calls, by number
  #open = new Map(); // abort controllers of incoming calls, by number
  #running = new AsyncLocalStorage(); // the number of the running handler's call
  #served = null;
  #awake = null;
  #bodies = new Bodies(() => this.#native, () => this.#stayAwake());

  /** Opens the native module with the first call: a process without calls has no thread. */
  #opened(serves, streams = false) {
    if (this.#native === null || serves) {
      this.#native ??= require(process.env.NEARPATH_NODE_NATIVE ?? '../nearpath.node');
      this.#native.open((message) => this.#told(message), serves, streams);
    }
    return this.#native;
  }

  async call(name, payload, how = {}) {
    const { stream = false, signal } = how;
    signal?.throwIfAborted();
    const pieces = isPieces(payload) ? payload : null;
    const body = bytes(pieces ? null : payload);
    const [id, response] = this.#made(how, (id, ask) => this.#native.call(id, String(name), body, ask, pieces !== null, stream));
    const giveUp = () => this.#giveUp(id, signal.reason);
    const done = () => signal?.removeEventListener('abort', giveUp);
    signal?.addEventListener('abort', giveUp, { once: true });
    if (pieces) this.#bodies.write(id, false, pieces).catch((error) => this.#calls.get(id)?.reject(error));
    const { status, headers, body: whole, path, notNearer, instance, length } = await response.catch((error) => {
      done();
      throw error;
    });
    const told = { status, headers: object(headers), fields: inPairs(headers), body: whole, path: path ?? null };
    Object.assign(told, { notNearer: notNearer ?? null, instance: instance ?? null, length: length ?? null });
    if (stream) return { ...told, stream: this.#bodies.read(id, false, signal, done) };
    done();
    return told;
  }

  /** Cancels a call and notifies the callee. */
  #giveUp(id, reason) {
    this.#native.giveUp(id);
    this.#bodies.giveUp(id);
    this.#calls.get(id)?.reject(reason);
    this.#calls.delete(id);
    this.#stayAwake();
  }

  /** Returns the header fields with which another client forwards the running handler's trace and deadline. */
  handedOn() {
    const { traceparent, late } = this.#open.get(this.#running.getStore())?.handed ?? {};
    const fields = traceparent ? { traceparent } : {};
    return late ? { ...fields, 'x-timeout': `${Math.max(1, Math.floor(late - performance.now()))}ms` } : fields;
  }

  /** Sends an event to a function or to a topic's subscribers, or queues a call at the gateway. */
  async tell(name, payload, how = {}, { topic = false, later = false } = {}) {
    const body = bytes(payload);
    const [, told] = this.#made(how, (id, ask) => this.#native.sendEvent(id, String(name), body, ask, topic, later));
    return told;
  }

  /** Makes a call and returns its number and its outcome. */
  #made(how, make) {
    const { method, path, headers, deadline, idempotent, nearOnly } = how;
    const parent = this.#running.getStore();
    const ask = { method, path, headers: inTurn(headers), deadline, idempotent, nearOnly, parent };
    this.#opened(false);
    const id = ++this.#last;
    const outcome = new Promise((resolve, reject) => this.#calls.set(id, { resolve, reject }));
    this.#stayAwake();
    make(id, ask);
    return [id, outcome];
  }

  serve(handler, { stream = false } = {}) {
    if (typeof handler !== 'function') throw new TypeError('invalid handler: expected a function');
    if (this.#served) throw new Error('this process serves already');
    return new Promise((resolve, reject) => {
      const stop = () => this.#native.stop();
      const done = (settle) => (value) => {
        for (const name of ['SIGTERM', 'SIGINT']) process.removeListener(name, stop);
        this.#served = null;
        settle(value);
      };
      this.#served = { handler, stream, resolve: done(resolve), reject: done(reject) };
      this.#opened(true, stream);
      this.#stayAwake();
      for (const name of ['SIGTERM', 'SIGINT']) process.on(name, stop);
    });
  }

  #told(message) {
    if (message.id === SERVED) this.#over(message.error);
    else if (typeof message.taken === 'boolean') this.#bodies.told(message);
    else if (message.request) this.#take(message.id, message.request);
    else if (message.givenUp) this.#open.get(message.id)?.abort();
    else this.#settle(message);
    this.#stayAwake();
  }

  #over(error) {
    if (error) this.#served.reject(new NearpathError(error));
    else this.#served.resolve();
  }

  #settle({ id, response, error, published, accepted }) {
    const call = this.#calls.get(id);
    if (call === undefined) return; // the call was cancelled
    this.#calls.delete(id);
    if (error) call.reject(new NearpathError(error));
    else if (published) call.resolve({ sent: published[0], missed: published[1] });
    else call.resolve(accepted === undefined ? response : accepted || null);
  }

  async #take(id, { headers, timeLeft, traceparent, caller, topic, ...request }) {
    const given = new AbortController();
    given.handed = { traceparent, late: timeLeft === undefined ? 0 : performance.now() + timeLeft };
    this.#open.set(id, given);
    Object.assign(request, { headers: object(headers), timeLeft: timeLeft ?? null, caller: caller ?? null, topic: topic ?? null });
    const whole = request.body;
    request.stream = this.#served.stream ? this.#bodies.read(id, true) : (async function* once() {
      if (whole.length > 0) yield whole;
    })();
    Object.defineProperty(request, 'signal', { get: () => given.signal });
    let response;
    try {
      response = answer(await this.#running.run(id, () => this.#served.handler(request)));
    } catch (error) {
      response = failed(error);
    }
    const { pieces, ...head } = response;
    this.#native.answer(id, head, pieces !== undefined);
    if (pieces) await this.#bodies.write(id, true, pieces).catch(console.error); // the error has aborted the body
    this.#open.delete(id);
    this.#native.leave(id, true);
  }

  /** Keeps the process alive during open calls; the native module does not. */
  #stayAwake() {
    const busy = this.#calls.size > 0 || this.#bodies.busy || this.#served !== null;
    if (busy && this.#awake === null) this.#awake = setInterval(() => {}, 0x7fffffff);
    if (!busy && this.#awake !== null) {
      clearInterval(this.#awake);
      this.#awake = null;
    }
  }
}

module.exports = { Half };
