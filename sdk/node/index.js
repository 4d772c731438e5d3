'use strict';
// Functions that serve and make calls over the nearest path. index.d.ts is the reference.

const { Fetch } = require('./lib/fetch');
const { Half } = require('./lib/half');
const { NearpathError } = require('./lib/words');

const half = new Half();
const fetcher = new Fetch(half);

/** Serves until SIGTERM or SIGINT. */
function serve(handler, how) {
  return half.serve(handler, how);
}

/** Calls a function and waits for its answer, whatever its status. */
function call(name, payload, how) {
  return half.call(name, payload, how);
}

/** Sends an event, which has no answer. */
async function notify(name, payload, how) {
  await half.tell(name, payload, how);
}

/** Sends an event to the subscribers of a topic. */
function publish(topic, payload, how) {
  return half.tell(topic, payload, how, { topic: true });
}

/** Queues a call at the gateway, which later POSTs the answer to `callback`. */
function callLater(name, payload, { callback, headers, ...how } = {}) {
  const fields = callback === undefined ? headers : { ...headers, 'x-callback-url': String(callback) };
  return half.tell(name, payload, { ...how, headers: fields }, { later: true });
}

/** fetch, with calls of functions over the nearest path. */
function fetch(input, init) {
  return fetcher.fetch(input, init);
}

/** Returns the header fields with which another client forwards the running handler's trace and deadline. */
function handedOn() {
  return half.handedOn();
}

/** Calls several functions at once: each is [name, payload]. */
function gather(calls, how) {
  return Promise.all(calls.map(([name, payload]) => call(name, payload, how)));
}

module.exports = { serve, call, callLater, fetch, gather, handedOn, notify, publish, NearpathError };
