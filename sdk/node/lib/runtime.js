'use strict';
// The JavaScript side of the native module: call numbers, promises and running handlers.

const { AsyncLocalStorage } = require('node:async_hooks');
const { BodyStreams } = require('./body_streams');
const { NearpathError } = require('./errors');
const { isPieces, toBytes, toErrorResponse, toFieldList, toHeaders, toPairs, toResponse } = require('./messages');

/** The number of the message that reports the end of serving. */
const SERVING_ENDED_ID = -1;

class Runtime {
  #native = null;
  #lastId = 0;
  #calls = new Map(); // promises of outgoing calls, by number
  #requests = new Map(); // abort controllers and contexts of incoming calls, by number
  #current = new AsyncLocalStorage(); // the number of the running handler's call
  #server = null;
  #keepAlive = null;
  #bodies = new BodyStreams(() => this.#native, () => this.#updateKeepAlive());

  /** Starts the native runtime with the first call: a process without calls has no thread. */
  #start(serves, streams = false) {
    if (this.#native === null || serves) {
      this.#native ??= require(process.env.NEARPATH_NODE_NATIVE ?? '../nearpath.node');
      this.#native.startRuntime((message) => this.#handleMessage(message), serves, streams);
    }
    return this.#native;
  }

  async call(name, payload, options = {}) {
    const { stream = false, signal } = options;
    signal?.throwIfAborted();
    const pieces = isPieces(payload) ? payload : null;
    const body = toBytes(pieces ? null : payload);
    const send = (id, nativeOptions) => this.#native.call(id, String(name), body, nativeOptions, pieces !== null, stream);
    const [id, outcome] = this.#send(options, send);
    const cancel = () => this.#cancel(id, signal.reason);
    const removeListener = () => signal?.removeEventListener('abort', cancel);
    signal?.addEventListener('abort', cancel, { once: true });
    if (pieces) this.#bodies.write(id, false, pieces).catch((error) => this.#calls.get(id)?.reject(error));
    const { status, headers, body: received, path, obstacle, instance, length } = await outcome.catch((error) => {
      removeListener();
      throw error;
    });
    const response = { status, headers: toHeaders(headers), fields: toPairs(headers), body: received, path: path ?? null };
    Object.assign(response, { obstacle: obstacle ?? null, instance: instance ?? null, length: length ?? null });
    if (stream) return { ...response, stream: this.#bodies.read(id, false, signal, removeListener) };
    removeListener();
    return response;
  }

  /** Cancels a call and notifies the callee. */
  #cancel(id, reason) {
    this.#native.cancelCall(id);
    this.#bodies.cancel(id);
    this.#calls.get(id)?.reject(reason);
    this.#calls.delete(id);
    this.#updateKeepAlive();
  }

  /** Returns the header fields with which another client forwards the running handler's trace and deadline. */
  propagatedFields() {
    const { traceparent, deadline } = this.#requests.get(this.#current.getStore())?.context ?? {};
    const fields = traceparent ? { traceparent } : {};
    if (!deadline) return fields;
    const timeLeft = Math.max(1, Math.floor(deadline - performance.now()));
    return { ...fields, 'x-timeout': `${timeLeft}ms` };
  }

  /** Sends an event to a function or to a topic's subscribers, or queues a call at the gateway. */
  async sendEvent(name, payload, options = {}, { isTopic = false, isQueued = false } = {}) {
    const body = toBytes(payload);
    const send = (id, nativeOptions) => this.#native.sendEvent(id, String(name), body, nativeOptions, isTopic, isQueued);
    const [, outcome] = this.#send(options, send);
    return outcome;
  }

  /** Sends a call and returns its number and the promise of its outcome. */
  #send(options, send) {
    const { method, path, headers, deadline, idempotent, shmOnly } = options;
    const parent = this.#current.getStore();
    const nativeOptions = { method, path, headers: toFieldList(headers), deadline, idempotent, shmOnly, parent };
    this.#start(false);
    const id = ++this.#lastId;
    const outcome = new Promise((resolve, reject) => this.#calls.set(id, { resolve, reject }));
    this.#updateKeepAlive();
    send(id, nativeOptions);
    return [id, outcome];
  }

  serve(handler, { stream = false } = {}) {
    if (typeof handler !== 'function') throw new TypeError('invalid handler: expected a function');
    if (this.#server) throw new Error('this process serves already');
    return new Promise((resolve, reject) => {
      const stop = () => this.#native.stopServing();
      const stopped = (settle) => (value) => {
        for (const name of ['SIGTERM', 'SIGINT']) process.removeListener(name, stop);
        this.#server = null;
        settle(value);
      };
      this.#server = { handler, stream, resolve: stopped(resolve), reject: stopped(reject) };
      this.#start(true, stream);
      this.#updateKeepAlive();
      for (const name of ['SIGTERM', 'SIGINT']) process.on(name, stop);
    });
  }

  #handleMessage(message) {
    if (message.id === SERVING_ENDED_ID) this.#endServing(message.error);
    else if (typeof message.isIncoming === 'boolean') this.#bodies.handleMessage(message);
    else if (message.request) this.#handleRequest(message.id, message.request);
    else if (message.isCancelled) this.#requests.get(message.id)?.abort();
    else this.#endCall(message);
    this.#updateKeepAlive();
  }

  #endServing(error) {
    if (error) this.#server.reject(new NearpathError(error));
    else this.#server.resolve();
  }

  #endCall({ id, response, error, published, accepted }) {
    const call = this.#calls.get(id);
    if (call === undefined) return; // the call was cancelled
    this.#calls.delete(id);
    if (error) call.reject(new NearpathError(error));
    else if (published) call.resolve({ sent: published[0], missed: published[1] });
    else call.resolve(accepted === undefined ? response : accepted || null);
  }

  async #handleRequest(id, { headers, timeLeft, traceparent, caller, topic, ...request }) {
    const controller = new AbortController();
    controller.context = { traceparent, deadline: timeLeft === undefined ? 0 : performance.now() + timeLeft };
    this.#requests.set(id, controller);
    Object.assign(request, { headers: toHeaders(headers), timeLeft: timeLeft ?? null, caller: caller ?? null, topic: topic ?? null });
    const { body } = request;
    request.stream = this.#server.stream ? this.#bodies.read(id, true) : (async function* once() {
      if (body.length > 0) yield body;
    })();
    Object.defineProperty(request, 'signal', { get: () => controller.signal });
    let response;
    try {
      response = toResponse(await this.#current.run(id, () => this.#server.handler(request)));
    } catch (error) {
      response = toErrorResponse(error);
    }
    const { pieces, ...head } = response;
    this.#native.respond(id, head, pieces !== undefined);
    if (pieces) await this.#bodies.write(id, true, pieces).catch(console.error); // the error has aborted the body
    this.#requests.delete(id);
    this.#native.closeBody(id, true);
  }

  /** Keeps the process alive during open calls; the native module does not. */
  #updateKeepAlive() {
    const isBusy = this.#calls.size > 0 || this.#bodies.isBusy || this.#server !== null;
    if (isBusy && this.#keepAlive === null) this.#keepAlive = setInterval(() => {}, 0x7fffffff);
    if (!isBusy && this.#keepAlive !== null) {
      clearInterval(this.#keepAlive);
      this.#keepAlive = null;
    }
  }
}

module.exports = { Runtime };
