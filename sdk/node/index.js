'use strict';
// Functions that take calls and make them, over the nearest path there is. index.d.ts is the reference.

const { Half } = require('./lib/half');
const { NearpathError } = require('./lib/words');

const half = new Half();

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
  await half.tell(name, payload, how, false);
}

/** Sends an event to those who subscribe to a topic. */
function publish(topic, payload, how) {
  return half.tell(topic, payload, how, true);
}

/** Calls several functions at once: each is [name, payload]. */
function gather(calls, how) {
  return Promise.all(calls.map(([name, payload]) => call(name, payload, how)));
}

module.exports = { serve, call, notify, publish, gather, NearpathError };
