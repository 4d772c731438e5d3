'use strict';
// fetch in a domain: calls go through memory.

const assert = require('node:assert/strict');
const { after, describe, test } = require('node:test');

const { scenes } = require('./fetch.scenes');
const { Domain, missing, openfaas } = require('./surroundings');

describe('fetch in a domain', { skip: missing() }, async () => {
  if (missing()) return;
  const faas = await openfaas();
  const domain = await new Domain().begin('caller>callee', 'caller>mirror');
  Object.assign(process.env, { NEARPATH_DISPATCH: domain.door('caller'), NEARPATH_GATEWAY: faas.url });
  const nearpath = require('..');
  await domain.start('callee');
  for (;;) {
    const answer = await nearpath.call('callee', '', { nearOnly: true, path: '/hung' }).catch((error) => error);
    if (answer.status === 200) break;
    assert.equal(answer.kind, 'unsent', answer);
    await new Promise((resolve) => setTimeout(resolve, 5)); // there is no event for the start of another process
  }
  after(async () => {
    assert.deepEqual(await domain.stop(), [0]);
    await faas.stop();
  });
  const at = (path) => `http://gateway:8080/function/callee/${path}`;
  const text = async (url, how) => (await nearpath.fetch(url, how)).text();

  scenes({ at, way: 'shm', names: { teapot: 'pair', slow: 'hang', cut: 'broken' } });

  test('the callee is told who gave up', async () => {
    const before = Number(await text(at('hung')));
    await assert.rejects(nearpath.fetch(at('hang'), { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    await assert.rejects(nearpath.call('callee', '', { path: '/hang', signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    while (Number(await text(at('hung'))) < before + 2); // the test has a deadline
  });

  test('a stream comes as it is made, and who leaves is heard', async () => {
    const seen = async () => JSON.parse(await text(at('seen')));
    const [, before] = await seen();
    for await (const part of (await nearpath.fetch(at('events'))).body) {
      assert.equal(part.length, 60_000);
      break;
    }
    while ((await seen())[1] === before); // the test has a deadline
    const given = new AbortController();
    const answer = await nearpath.fetch(at('events'), { signal: given.signal });
    const reader = answer.body.getReader();
    await reader.read();
    given.abort();
    await assert.rejects(async () => {
      for (;;) if ((await reader.read()).done) return;
    }, { name: 'AbortError' });
    while ((await seen())[1] === before + 1); // the test has a deadline
  });

  test('every form of a name', async () => {
    for (const url of ['nearpath://callee/mirror', 'http://callee/mirror', `${faas.url}/function/callee.openfaas-fn/mirror`]) {
      const answer = await nearpath.fetch(url, { method: 'PUT', body: 'x' });
      assert.deepEqual([(await answer.json()).method, answer.headers.get('x-nearpath-path')], ['PUT', 'shm'], url);
    }
  });

  test('what the domain does not reach goes over HTTP', async () => {
    for (const body of ['text', new Blob(['text']).stream()]) {
      const answer = await nearpath.fetch(`${faas.url}/function/mirror`, { method: 'POST', body, duplex: 'half' });
      assert.deepEqual([(await answer.json()).body, answer.headers.get('x-nearpath-path')], ['text', 'http; not_nearer=no_endpoint']);
    }
    const answer = await nearpath.call('mirror', 'x');
    assert.deepEqual([answer.path, answer.notNearer], ['http', 'no_endpoint']);
  });
});
