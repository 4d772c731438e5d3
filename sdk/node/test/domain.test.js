'use strict';
// Functions of one domain: a real hub, each function a process; this one is `caller`.

const assert = require('node:assert/strict');
const { after, before, describe, test } = require('node:test');

const { Domain, missing } = require('./surroundings');

describe('in a domain', { skip: missing() }, () => {
  let domain;
  let nearpath;

  const untilNear = async (name, how) => {
    for (let tries = 0; tries < 6000; tries += 1) {
      try {
        const answer = await nearpath.call(name, '', { ...how, nearOnly: true });
        if (answer.status < 300) return;
      } catch (error) {
        if (error.kind !== 'unsent') throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, 5)); // there is no event for the start of another process
    }
    assert.fail(`${name} never comes`);
  };

  const allNear = async () => {
    await untilNear('front', { path: '/on' }); // so front has found callee
    await untilNear('callee');
  };

  before(async () => {
    domain = await new Domain().begin('caller>front', 'caller>callee', 'front>callee', 'caller>mortal');
    process.env.NEARPATH_DISPATCH = domain.door('caller');
    nearpath = require('..');
    await domain.start('front');
    await domain.start('callee');
    await allNear();
  });
  after(async () => assert.deepEqual(await domain.stop(), [0, 0, 3]));

  test('a call goes through memory', async () => {
    const answer = await nearpath.call('callee', 'near');
    assert.deepEqual([answer.status, String(answer.body), answer.path], [200, 'near', 'shm']);
    assert.equal(typeof answer.instance, 'number');
  });

  test('what a handler sees', async () => {
    const how = { path: '/how', method: 'PUT', headers: { 'x-one': '1' }, deadline: 30_000 };
    const answer = await nearpath.call('callee', '', how);
    assert.deepEqual(JSON.parse(answer.body), ['shm', 'PUT', 'caller.openfaas-fn', '1', true]);
    assert.deepEqual([answer.status, answer.headers['x-by']], [203, 'node']);
  });

  test('what a handler may return', async () => {
    const told = {};
    for (const path of ['/pair', '/nothing', '/throw']) {
      const { status, body } = await nearpath.call('callee', 'x', { path });
      told[path] = [status, String(body)];
    }
    assert.deepEqual(told, { '/pair': [418, 'tea'], '/nothing': [200, ''], '/throw': [500, 'RangeError: it broke'] });
  });

  test('a chain, and the deadline goes along', async () => {
    const answer = await nearpath.call('front', '', { path: '/on', deadline: 30_000 });
    assert.equal(answer.headers['x-inner'], 'shm');
    assert.deepEqual(JSON.parse(answer.body), ['shm', 'PUT', 'front.openfaas-fn', null, true]);
  });

  test('several at once', async () => {
    const wanted = Array.from({ length: 100 }, (_, k) => String(k));
    const answers = await nearpath.gather(wanted.map((each) => ['callee', each]));
    assert.deepEqual(answers.map(({ body }) => String(body)), wanted);
  });

  test('large bodies', async () => {
    for (const length of [0, 1, 4096, 1 << 20, 5 << 20]) {
      const body = Buffer.alloc(length, 7);
      assert.ok((await nearpath.call('callee', body)).body.equals(body), `${length} bytes`);
    }
  });

  test('a handler is told that its caller no longer waits', async () => {
    const error = await nearpath.call('callee', '', { path: '/hang', deadline: 50 }).then(assert.fail, (raised) => raised);
    assert.deepEqual([error.kind, error.path, error.function], ['timeout', 'shm', 'callee']);
    while (String((await nearpath.call('callee', '', { path: '/hung' })).body) !== '1'); // the test has a deadline
  });

  test('an event', async () => {
    await nearpath.notify('callee', 'event', { nearOnly: true });
    assert.equal(String((await nearpath.call('callee', 'after')).body), 'after');
  });

  test('a callee that dies', async () => {
    await domain.start('mortal');
    await untilNear('mortal');
    const how = { path: '/die', deadline: 60_000 };
    const error = await nearpath.call('mortal', '', how).then(assert.fail, (raised) => raised);
    assert.deepEqual([error.kind, error.path, error.function, error.retryIsSafe], ['died', 'shm', 'mortal', false]);
  });

  test('the node restarts', async () => {
    await domain.end();
    const error = await (async () => {
      for (;;) await nearpath.call('callee', '', { nearOnly: true }); // channels that are open go on while both ends live
    })().catch((raised) => raised);
    assert.equal(error.name, 'NearpathError');
    await domain.begin();
    await allNear();
    assert.equal((await nearpath.call('front', '', { path: '/on' })).headers['x-inner'], 'shm');
  });
});
