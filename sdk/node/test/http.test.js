'use strict';
// Outside a domain.

const assert = require('node:assert/strict');
const { spawn } = require('node:child_process');
const { once } = require('node:events');
const path = require('node:path');
const { after, before, test } = require('node:test');
const { Worker } = require('node:worker_threads');

const { freePort, gateway } = require('./surroundings');

let fake;
let nearpath;

before(async () => {
  fake = await gateway();
  process.env.NEARPATH_GATEWAY = fake.url;
  delete process.env.NEARPATH_DISPATCH;
  nearpath = require('..');
});
after(() => fake.stop());

test('a call', async () => {
  fake.asked.length = 0;
  const how = { method: 'PUT', path: '/a?b=c', headers: { 'X-Tenant': '7' } };
  const answer = await nearpath.call('price', 'one', how);
  assert.deepEqual([answer.status, String(answer.body), answer.path], [200, 'answer to one', 'http']);
  assert.equal(answer.headers['x-by'], 'price');
  const [{ method, url, headers, body }] = fake.asked;
  assert.deepEqual([method, url, headers['x-tenant'], body], ['PUT', '/function/price/a?b=c', '7', 'one']);
});

test('a later release may report names that are not known here', async () => {
  for (const [field, reported] of [
    ['shm', ['shm', null]],
    ['quic; not_nearer=no_domain', ['quic', 'no_domain']],
    ['direct;not_nearer=fog', ['direct', 'fog']],
    ['pigeon; not_nearer=fog', ['http', 'caller_no_endpoint']],
  ]) {
    const answer = await nearpath.call('price', '', { headers: { 'x-report': field } });
    assert.deepEqual([answer.path, answer.notNearer], reported, field);
  }
});

test('every kind of payload', async () => {
  const array = new Uint8Array([45, 120, 121, 45]);
  for (const payload of ['xy', Buffer.from('xy'), array.subarray(1, 3), array.slice(1, 3).buffer, new DataView(array.buffer, 1, 2)]) {
    assert.equal(String((await nearpath.call('price', payload)).body), 'answer to xy');
  }
  assert.equal(String((await nearpath.call('price')).body), 'answer to ');
  await assert.rejects(nearpath.call('price', 7), TypeError);
});

test('several at once, and an event', async () => {
  const answers = await nearpath.gather([['a', '1'], ['b', '2']]);
  assert.deepEqual(answers.map(({ body }) => String(body)), ['answer to 1', 'answer to 2']);
  fake.asked.length = 0;
  await nearpath.notify('mail', 'hello');
  assert.deepEqual([fake.asked[0].url, fake.asked[0].body], ['/async-function/mail', 'hello']);
});

test('errors say which function, which path and why', async () => {
  const caught = async (name, how) => {
    const error = await nearpath.call(name, '', how).then(assert.fail, (raised) => raised);
    assert.ok(error instanceof nearpath.NearpathError, error);
    assert.equal(error.function, name);
    return [error.kind, error.path, error.retryIsSafe, error.status, error.reason];
  };
  assert.deepEqual(await caught('refused'), ['platform', 'http', false, 403, 'not_allowed']);
  assert.deepEqual(await caught('dies'), ['died', 'http', false, null, null]);
  assert.deepEqual(await caught('No Name'), ['name', null, false, null, null]);
  assert.deepEqual(await caught('far', { nearOnly: true }), ['unsent', null, true, null, null]);
  assert.deepEqual(await caught('slow', { deadline: 50 }), ['timeout', 'http', false, null, null]);
});

test('a Worker has calls of its own', async () => {
  const code = `
    const { parentPort } = require('node:worker_threads');
    require(${JSON.stringify(path.join(__dirname, '..'))}).call('price', 'worker').then(({ body }) => parentPort.postMessage(String(body)));
  `;
  await nearpath.call('price', 'main');
  const workers = [1, 2].map(() => new Worker(code, { eval: true }));
  const told = await Promise.all(workers.map((worker) => once(worker, 'message')));
  assert.deepEqual(told, [['answer to worker'], ['answer to worker']]);
  await Promise.all(workers.map((worker) => worker.terminate()));
  assert.equal(String((await nearpath.call('price', 'main')).body), 'answer to main');
});

test('serving', async () => {
  const port = await freePort();
  const env = { ...process.env, PORT: String(port) };
  const child = spawn(process.execPath, [path.join(__dirname, 'roles.js')], { env, stdio: ['ignore', 'inherit', 'ignore'] });
  const ask = async (where, body) => {
    for (let tries = 0; ; tries += 1) {
      try {
        const answer = await fetch(`http://127.0.0.1:${port}${where}`, { method: 'POST', body });
        return [answer.status, await answer.text()];
      } catch (error) {
        if (tries > 3000) throw error;
        await new Promise((resolve) => setTimeout(resolve, 5)); // nobody tells that it listens
      }
    }
  };
  assert.deepEqual(await ask('/echo', 'body'), [200, 'body']);
  assert.deepEqual(await ask('/how'), [203, '["http","POST",null,null,false]']);
  assert.deepEqual(await ask('/throw'), [500, 'RangeError: it broke']);
  assert.deepEqual(await ask('/pair'), [418, 'tea']);
  child.kill('SIGTERM');
  assert.deepEqual(await once(child, 'exit'), [0, null]);
});
