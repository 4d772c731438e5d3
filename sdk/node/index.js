'use strict';
// Functions that serve and make calls over the nearest path. index.d.ts is the reference.

const { NearpathError } = require('./lib/errors');
const { FunctionFetch } = require('./lib/fetch');
const { Runtime } = require('./lib/runtime');

const runtime = new Runtime();
const functionFetch = new FunctionFetch(runtime);

/** Serves until SIGTERM or SIGINT. */
function serve(handler, options) {
  return runtime.serve(handler, options);
}

/** Calls a function and waits for its response, whatever its status. */
function call(name, payload, options) {
  return runtime.call(name, payload, options);
}

/** Sends an event, which has no response. */
async function notify(name, payload, options) {
  await runtime.sendEvent(name, payload, options);
}

/** Sends an event to the subscribers of a topic. */
function publish(topic, payload, options) {
  return runtime.sendEvent(topic, payload, options, { isTopic: true });
}

/** Queues a call at the gateway, which later sends the response as a POST to `callback`. */
function callLater(name, payload, { callback, headers, ...options } = {}) {
  const fields = callback === undefined ? headers : { ...headers, 'x-callback-url': String(callback) };
  return runtime.sendEvent(name, payload, { ...options, headers: fields }, { isQueued: true });
}

/** fetch, with calls of functions over the nearest path. */
function fetch(input, init) {
  return functionFetch.fetch(input, init);
}

/** Returns the header fields with which another client forwards the running handler's trace and deadline. */
function propagatedFields() {
  return runtime.propagatedFields();
}

/** Calls several functions at once: each is [name, payload]. */
function gather(calls, options) {
  return Promise.all(calls.map(([name, payload]) => call(name, payload, options)));
}

module.exports = { serve, call, callLater, fetch, gather, notify, propagatedFields, publish, NearpathError };
