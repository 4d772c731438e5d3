'use strict';
// Functions of one domain: a domain program without a node, each function a process; this process is `caller`.

const assert = require('node:assert/strict');
const { after, before, describe, test } = require('node:test');

const { Domain, domainSkipReason } = require('./fixtures');

describe('in a domain', { skip: domainSkipReason() }, () => {
  let domain;
  let nearpath;

  const awaitShm = async (name, options) => {
    for (let tries = 0; tries < 6000; tries += 1) {
      try {
        const response = await nearpath.call(name, '', { ...options, shmOnly: true });
        if (response.status < 300) return;
      } catch (error) {
        if (error.kind !== 'unsent') throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, 5)); // there is no event for the start of another process
    }
    assert.fail(`${name} is not reachable through shared memory`);
  };

  const awaitAll = async () => {
    await awaitShm('front', { path: '/forward' }); // so front reaches callee
    await awaitShm('callee');
  };

  before(async () => {
    domain = await new Domain().startNode('caller>front', 'caller>callee', 'front>callee', 'caller>mortal');
    process.env.NEARPATH_DISPATCH = domain.socketPath('caller');
    nearpath = require('..');
    await domain.startFunction('front');
    await domain.startFunction('callee');
    await awaitAll();
  });
  after(async () => assert.deepEqual(await domain.stop(), [0, 0, 3]));

  test('a call uses shared memory', async () => {
    const response = await nearpath.call('callee', 'near');
    assert.deepEqual([response.status, String(response.body), response.path], [200, 'near', 'shm']);
    assert.equal(typeof response.instance, 'number');
  });

  test('a handler receives path, method, caller, headers and deadline', async () => {
    const options = { path: '/facts', method: 'PUT', headers: { 'x-one': '1' }, deadline: 30_000 };
    const response = await nearpath.call('callee', '', options);
    assert.deepEqual(JSON.parse(response.body), ['shm', 'PUT', 'caller.openfaas-fn', '1', true]);
    assert.deepEqual([response.status, response.headers['x-by']], [203, 'node']);
  });

  test('a handler returns a pair, nothing or an exception', async () => {
    const results = {};
    for (const path of ['/pair', '/nothing', '/throw']) {
      const { status, body } = await nearpath.call('callee', 'x', { path });
      results[path] = [status, String(body)];
    }
    assert.deepEqual(results, { '/pair': [418, 'tea'], '/nothing': [200, ''], '/throw': [500, 'RangeError: it broke'] });
  });

  test('a chain forwards the deadline', async () => {
    const response = await nearpath.call('front', '', { path: '/forward', deadline: 30_000 });
    assert.equal(response.headers['x-inner'], 'shm');
    assert.deepEqual(JSON.parse(response.body), ['shm', 'PUT', 'front.openfaas-fn', null, true]);
  });

  test('gather returns the responses in the order of the calls', async () => {
    const payloads = Array.from({ length: 100 }, (_, k) => String(k));
    const responses = await nearpath.gather(payloads.map((each) => ['callee', each]));
    assert.deepEqual(responses.map(({ body }) => String(body)), payloads);
  });

  test('bodies larger than a slot arrive whole', async () => {
    for (const length of [0, 1, 4096, 1 << 20, 5 << 20]) {
      const body = Buffer.alloc(length, 7);
      assert.ok((await nearpath.call('callee', body)).body.equals(body), `${length} bytes`);
    }
  });

  test('a deadline of the caller cancels the handler', async () => {
    const error = await nearpath.call('callee', '', { path: '/hang', deadline: 50 }).then(assert.fail, (error) => error);
    assert.deepEqual([error.kind, error.path, error.function], ['timeout', 'shm', 'callee']);
    while (String((await nearpath.call('callee', '', { path: '/cancelled-calls' })).body) !== '1'); // the test has a deadline
  });

  test('an event has no response', async () => {
    await nearpath.notify('callee', 'event', { shmOnly: true });
    assert.equal(String((await nearpath.call('callee', 'after')).body), 'after');
  });

  test('a callee that dies fails its calls', async () => {
    await domain.startFunction('mortal');
    await awaitShm('mortal');
    const options = { path: '/die', deadline: 60_000 };
    const error = await nearpath.call('mortal', '', options).then(assert.fail, (error) => error);
    assert.deepEqual([error.kind, error.path, error.function, error.retryIsSafe], ['died', 'shm', 'mortal', false]);
  });

  test('a process rejoins after a restart of the node', async () => {
    await domain.stopNode();
    const error = await (async () => {
      for (;;) await nearpath.call('callee', '', { shmOnly: true }); // open channels work while both ends live
    })().catch((error) => error);
    assert.equal(error.name, 'NearpathError');
    await domain.startNode();
    await awaitAll();
    assert.equal((await nearpath.call('front', '', { path: '/forward' })).headers['x-inner'], 'shm');
  });
});
