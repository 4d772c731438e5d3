'use strict';
// Calls and serving outside a domain.

const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const path = require('node:path');
const { after, before, test } = require('node:test');
const { Worker } = require('node:worker_threads');

const { freePort, startFakeGateway } = require('./fixtures');

let gateway;
let nearpath;

before(async () => {
  gateway = await startFakeGateway();
  process.env.NEARPATH_GATEWAY = gateway.url;
  delete process.env.NEARPATH_DISPATCH;
  nearpath = require('..');
});
after(() => gateway.stop());

test('a call uses the gateway', async () => {
  gateway.requests.length = 0;
  const options = { method: 'PUT', path: '/a?b=c', headers: { 'X-Tenant': '7' } };
  const response = await nearpath.call('price', 'one', options);
  assert.deepEqual([response.status, String(response.body), response.path], [200, 'response to one', 'http']);
  assert.equal(response.headers['x-by'], 'price');
  const [{ method, url, headers, body }] = gateway.requests;
  assert.deepEqual([method, url, headers['x-tenant'], body], ['PUT', '/function/price/a?b=c', '7', 'one']);
});

test('unknown paths count as HTTP, unknown obstacles are forwarded', async () => {
  for (const [field, expected] of [
    ['shm', ['shm', null]],
    ['quic; obstacle=no_domain', ['quic', 'no_domain']],
    ['direct;obstacle=fog', ['direct', 'fog']],
    ['pigeon; obstacle=fog', ['http', 'caller_no_endpoint']],
  ]) {
    const response = await nearpath.call('price', '', { headers: { 'x-report': field } });
    assert.deepEqual([response.path, response.obstacle], expected, field);
  }
});

test('a call accepts every kind of payload', async () => {
  const array = new Uint8Array([45, 120, 121, 45]);
  for (const payload of ['xy', Buffer.from('xy'), array.subarray(1, 3), array.slice(1, 3).buffer, new DataView(array.buffer, 1, 2)]) {
    assert.equal(String((await nearpath.call('price', payload)).body), 'response to xy');
  }
  assert.equal(String((await nearpath.call('price')).body), 'response to ');
  await assert.rejects(nearpath.call('price', 7), TypeError);
});

test('gather makes several calls, and notify sends an event', async () => {
  const responses = await nearpath.gather([['a', '1'], ['b', '2']]);
  assert.deepEqual(responses.map(({ body }) => String(body)), ['response to 1', 'response to 2']);
  gateway.requests.length = 0;
  await nearpath.notify('mail', 'hello');
  assert.deepEqual([gateway.requests[0].url, gateway.requests[0].body], ['/async-function/mail', 'hello']);
});

test('errors have the function, the path and the cause', async () => {
  const caught = async (name, options) => {
    const error = await nearpath.call(name, '', options).then(assert.fail, (error) => error);
    assert.ok(error instanceof nearpath.NearpathError, error);
    assert.equal(error.function, name);
    return [error.kind, error.path, error.retryIsSafe, error.status, error.reason];
  };
  assert.deepEqual(await caught('refused'), ['platform', 'http', false, 403, 'not_allowed']);
  assert.deepEqual(await caught('dies'), ['died', 'http', false, null, null]);
  assert.deepEqual(await caught('No Name'), ['name', null, false, null, null]);
  assert.deepEqual(await caught('far', { shmOnly: true }), ['unsent', null, true, null, null]);
  assert.deepEqual(await caught('slow', { deadline: 50 }), ['timeout', 'http', false, null, null]);
});

test('each Worker makes its own calls', async () => {
  const code = `
    const { parentPort } = require('node:worker_threads');
    require(${JSON.stringify(path.join(__dirname, '..'))}).call('price', 'worker').then(({ body }) => parentPort.postMessage(String(body)));
  `;
  await nearpath.call('price', 'main');
  const workers = [1, 2].map(() => new Worker(code, { eval: true }));
  const messages = await Promise.all(workers.map((worker) => once(worker, 'message')));
  assert.deepEqual(messages, [['response to worker'], ['response to worker']]);
  await Promise.all(workers.map((worker) => worker.terminate()));
  assert.equal(String((await nearpath.call('price', 'main')).body), 'response to main');
});

test('serve responds over HTTP and stops on SIGTERM', async () => {
  const port = await freePort();
  const env = { ...process.env, PORT: String(port) };
  const child = spawn(process.execPath, [path.join(__dirname, 'test_function.js')], { env, stdio: ['ignore', 'inherit', 'ignore'] });
  const post = async (route, body) => {
    for (let tries = 0; ; tries += 1) {
      try {
        const response = await fetch(`http://127.0.0.1:${port}${route}`, { method: 'POST', body });
        return [response.status, await response.text()];
      } catch (error) {
        if (tries > 3000) throw error;
        await new Promise((resolve) => setTimeout(resolve, 5)); // there is no event for the start of the listener
      }
    }
  };
  assert.deepEqual(await post('/echo', 'body'), [200, 'body']);
  assert.deepEqual(await post('/facts'), [203, '["http","POST",null,null,false]']);
  assert.deepEqual(await post('/throw'), [500, 'RangeError: it broke']);
  assert.deepEqual(await post('/pair'), [418, 'tea']);
  child.kill('SIGTERM');
  assert.deepEqual(await once(child, 'exit'), [0, null]);
});
