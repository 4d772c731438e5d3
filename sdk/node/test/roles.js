'use strict';
// A function for the tests, as a process of its own; with a word, a caller that plays one scene.

const nearpath = require('..');

async function handler(request) {
  switch (request.path) {
    case '/how': {
      const { cameOver, method, caller, timeLeft, headers } = request;
      const told = [cameOver, method, caller, headers['x-one'], timeLeft !== null];
      return { status: 203, headers: { 'X-By': 'node' }, body: JSON.stringify(told) };
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
      hung += 1;
      return 'nobody hears';
    case '/hung':
      return String(hung);
    case '/on': {
      const inner = await nearpath.call('callee', request.body, { nearOnly: true, path: '/how', method: 'PUT' });
      return { headers: { 'x-inner': inner.path }, body: inner.body };
    }
    default:
      return request.body;
  }
}

let hung = 0;

nearpath.serve(handler).catch((error) => {
  console.error(error.message);
  process.exitCode = 1;
});
