'use strict';
// Functions that take calls and make them, over the nearest path there is. index.d.ts is the reference.

const { Fetch } = require('./lib/fetch');
const { Half } = require('./lib/half');
const { NearpathError } = require('./lib/words');

const half = new Half();
const fetcher = new Fetch(half);

/** Serves until the process is told to stop. */
function serve(handler, how) {
  return half.serve(handler, how);
}

/** Calls a function and waits for its answer, whatever status that has. */
function call(name, payload, how) {
  return half.call(name, payload, how);
}

/** Sends an event: nobody answers. */
async function notify(name, payload, how) {
  await half.tell(name, payload, how);
}

/** Sends an event to those who subscribe to a topic. */
function publish(topic, payload, how) {
  return half.tell(topic, payload, how, { topic: true });
}

/** Has a function called later: the gateway queues the call, and POSTs the answer to `callback`. */
function callLater(name, payload, { callback, headers, ...how } = {}) {
  const fields = callback === undefined ? headers : { ...headers, 'x-callback-url': String(callback) };
  return half.tell(name, payload, { ...how, headers: fields }, { later: true });
}

/** fetch, with calls of functions over the nearest path there is. */
function fetch(input, init) {
  return fetcher.fetch(input, init);
}

/** The fields with which another client hands on what the handler that runs was given. */
function handedOn() {
  return half.handedOn();
}

/** Calls several functions at once: each is [name, payload]. */
function gather(calls, how) {
  return Promise.all(calls.map(([name, payload]) => call(name, payload, how)));
}

module.exports = { serve, call, callLater, fetch, gather, handedOn, notify, publish, NearpathError };
