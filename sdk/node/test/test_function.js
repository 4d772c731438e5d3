'use strict';
// The function of the tests, in its own process. The path of a request selects its behaviour.

const zlib = require('node:zlib');

const nearpath = require('..');

let partsYielded = 0;
let streamsEnded = 0;
let callsCancelled = 0;
const topics = [];

async function* endless() {
  try {
    for (;;) {
      partsYielded += 1;
      yield Buffer.alloc(60_000);
    }
  } finally {
    streamsEnded += 1;
  }
}

async function handler(request) {
  if (request.isEvent) return void topics.push([request.topic, String(request.body)]);
  switch (request.path.replace(/\?.*|moved\//g, '')) {
    case '/long':
      return Buffer.alloc(300_000);
    case '/kept':
      return { status: 307, headers: { location: 'mirror' } };
    case '/bad-gzip':
      return { headers: { 'content-encoding': 'gzip' }, body: 'not gzip' };
    case '/facts': {
      const { arrivalPath, method, caller, timeLeft, headers } = request;
      const facts = [arrivalPath, method, caller, headers['x-one'], timeLeft !== null];
      return { status: 203, headers: { 'X-By': 'node' }, body: JSON.stringify(facts) };
    }
    case '/throw':
      throw new RangeError('it broke');
    case '/die':
      return process.exit(3);
    case '/nothing':
      return undefined;
    case '/pair':
      return [418, 'tea'];
    case '/hang':
      await new Promise((resolve) => request.signal.addEventListener('abort', resolve));
      callsCancelled += 1;
      return 'dropped: the caller has cancelled the call';
    case '/cancelled-calls':
      return String(callsCancelled);
    case '/upper':
      return (async function* upper() {
        for await (const part of request.stream) yield String(part).toUpperCase();
      })();
    case '/count': {
      let count = 0;
      for await (const part of request.stream) count += part.length;
      return String(count);
    }
    case '/events':
      return { status: 207, headers: { 'content-type': 'text/event-stream' }, body: endless() };
    case '/stream-counts':
      return JSON.stringify([partsYielded, streamsEnded]);
    case '/broken':
      return (async function* broken() {
        yield 'some';
        throw new RangeError('it broke');
      })();
    case '/mirror': {
      const { method, path, headers, body } = request;
      return { headers: { 'content-type': 'application/json' }, body: JSON.stringify({ method, path, headers, body: String(body) }) };
    }
    case '/cookies':
      return { headers: { 'set-cookie': ['one=1', 'two=2'] } };
    case '/moved':
      return { status: 302, headers: { location: 'moved/mirror' }, body: 'not here' };
    case '/packed':
      return { headers: { 'content-encoding': 'gzip' }, body: zlib.gzipSync('unpacked') };
    case '/topics':
      return JSON.stringify(topics);
    case '/forward': {
      const inner = await nearpath.call('callee', request.body, { shmOnly: true, path: '/facts', method: 'PUT' });
      return { headers: { 'x-inner': inner.path }, body: inner.body };
    }
    default:
      return request.body;
  }
}

nearpath.serve(handler, { stream: 'STREAM' in process.env }).catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
