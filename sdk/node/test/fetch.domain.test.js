'use strict';
// fetch in a domain: calls use shared memory.

const assert = require('node:assert/strict');
const { after, describe, test } = require('node:test');

const { fetchCases } = require('./fetch.cases');
const { Domain, domainSkipReason, startOpenFaaS } = require('./fixtures');

describe('fetch in a domain', { skip: domainSkipReason() }, async () => {
  if (domainSkipReason()) return;
  const faas = await startOpenFaaS();
  const domain = await new Domain().startNode('caller>callee', 'caller>mirror');
  Object.assign(process.env, { NEARPATH_DISPATCH: domain.socketPath('caller'), NEARPATH_GATEWAY: faas.url });
  const nearpath = require('..');
  await domain.startFunction('callee');
  for (;;) {
    const response = await nearpath.call('callee', '', { shmOnly: true, path: '/cancelled-calls' }).catch((error) => error);
    if (response.status === 200) break;
    assert.equal(response.kind, 'unsent', response);
    await new Promise((resolve) => setTimeout(resolve, 5)); // there is no event for the start of another process
  }
  after(async () => {
    assert.deepEqual(await domain.stop(), [0]);
    await faas.stop();
  });
  const urlOf = (path) => `http://gateway:8080/function/callee/${path}`;
  const fetchText = async (url, init) => (await nearpath.fetch(url, init)).text();

  fetchCases({ urlOf, reportedPath: 'shm', names: { teapot: 'pair', slow: 'hang', truncated: 'broken' } });

  test('an aborted call cancels its handler', async () => {
    const before = Number(await fetchText(urlOf('cancelled-calls')));
    await assert.rejects(nearpath.fetch(urlOf('hang'), { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    await assert.rejects(nearpath.call('callee', '', { path: '/hang', signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    while (Number(await fetchText(urlOf('cancelled-calls'))) < before + 2); // the test has a deadline
  });

  test('fetch streams a response, and leaving it ends its generator', async () => {
    const streamCounts = async () => JSON.parse(await fetchText(urlOf('stream-counts')));
    const [, before] = await streamCounts();
    for await (const part of (await nearpath.fetch(urlOf('events'))).body) {
      assert.equal(part.length, 60_000);
      break;
    }
    while ((await streamCounts())[1] === before); // the test has a deadline
    const controller = new AbortController();
    const response = await nearpath.fetch(urlOf('events'), { signal: controller.signal });
    const reader = response.body.getReader();
    await reader.read();
    controller.abort();
    await assert.rejects(async () => {
      for (;;) if ((await reader.read()).done) return;
    }, { name: 'AbortError' });
    while ((await streamCounts())[1] === before + 1); // the test has a deadline
  });

  test('fetch accepts every form of a function URL', async () => {
    for (const url of ['nearpath://callee/mirror', 'http://callee/mirror', `${faas.url}/function/callee.openfaas-fn/mirror`]) {
      const response = await nearpath.fetch(url, { method: 'PUT', body: 'x' });
      assert.deepEqual([(await response.json()).method, response.headers.get('x-nearpath-path')], ['PUT', 'shm'], url);
    }
  });

  test('fetch uses HTTP outside the domain', async () => {
    for (const body of ['text', new Blob(['text']).stream()]) {
      const response = await nearpath.fetch(`${faas.url}/function/mirror`, { method: 'POST', body, duplex: 'half' });
      assert.deepEqual([(await response.json()).body, response.headers.get('x-nearpath-path')], ['text', 'http; obstacle=no_endpoint']);
    }
    const response = await nearpath.call('mirror', 'x');
    assert.deepEqual([response.path, response.obstacle], ['http', 'no_endpoint']);
  });
});
