'use strict';
// fetch beside an OpenFaaS gateway.

const assert = require('node:assert/strict');
const { once } = require('node:events');
const http = require('node:http');
const { after, describe, test } = require('node:test');

const { scenes } = require('./fetch.scenes');
const { openfaas } = require('./surroundings');
const { gateway, target } = require('../lib/urls');

const NAMES = ['NEARPATH_GATEWAY', 'gateway_url', 'gateway_hostname', 'OPENFAAS_URL', 'gateway'];
const TRACE = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

/** With the variables that name a gateway, and no others. */
function within(words, work) {
  const before = Object.fromEntries(NAMES.map((name) => [name, process.env[name]]));
  for (const name of NAMES) delete process.env[name];
  Object.assign(process.env, words);
  try {
    return work();
  } finally {
    for (const name of NAMES) before[name] === undefined ? delete process.env[name] : (process.env[name] = before[name]);
  }
}

test('which URLs mean a function', () => {
  within({ NEARPATH_GATEWAY: 'http://faas:31112' }, () => {
    for (const [url, name, path, far] of [
      ['http://gateway:8080/function/echo', 'echo', '/', 'http://faas:31112/function/echo'],
      ['http://gateway.openfaas:8080/function/echo.dev/a/b?c=d', 'echo.dev', '/a/b?c=d'],
      ['http://faas:31112/function/echo?c=d', 'echo', '/?c=d'],
      ['nearpath://echo', 'echo', '/', 'http://faas:31112/function/echo'],
      ['nearpath://echo.dev/a?b', 'echo.dev', '/a?b', 'http://faas:31112/function/echo.dev/a?b'],
      ['http://echo/a', 'echo', '/a', 'http://faas:31112/function/echo/a'],
    ]) {
      const told = target(url);
      assert.deepEqual([told?.name, told?.path, told?.far], [name, path, far ?? url], url);
    }
    for (const url of [
      'http://example.com/function/echo',
      'http://localhost/function/echo',
      'http://faas/function/echo',
      'https://faas:31112/function/echo',
      'http://faas:31112/async-function/echo',
      'http://gateway/',
      'http://gateway:8080/function/No_Name',
      'http://echo:80/',
      'http://echo:8080/',
      'https://echo/',
      'http://user@echo/',
      'http://[::1/',
      'ftp://echo/',
      'no scheme',
    ]) {
      assert.equal(target(url), null, url);
    }
  });
});

test('an environment that says nothing', () => {
  assert.equal(within({}, () => target('http://gateway/function/echo/').far), 'http://gateway/function/echo/');
});

test('where the gateway is', () => {
  for (const [words, url] of [
    [{}, 'http://gateway:8080'],
    [{ OPENFAAS_URL: 'http://127.0.0.1:31112/', gateway: 'http://g' }, 'http://127.0.0.1:31112'],
    [{ gateway: 'gateway.openfaas:8080' }, 'http://gateway.openfaas:8080'],
    [{ gateway_hostname: 'g', OPENFAAS_URL: 'http://o' }, 'http://g:8080'],
    [{ NEARPATH_GATEWAY: 'http://n:1', gateway_url: 'http://u' }, 'http://n:1'],
  ]) {
    assert.equal(within(words, gateway), url);
  }
});

describe('beside OpenFaaS', async () => {
  const faas = await openfaas();
  process.env.NEARPATH_GATEWAY = faas.url;
  delete process.env.NEARPATH_DISPATCH;
  const nearpath = require('..');
  after(() => faas.stop());
  const at = (path) => `${faas.url}/function/${path}`;

  scenes({ at, way: 'http; not_nearer=caller_no_endpoint', names: { teapot: 'teapot', slow: 'slow', cut: 'cut' } });

  test('names instead of the gateway', async () => {
    for (const url of ['nearpath://mirror/a?b=c', 'nearpath://mirror.openfaas-fn/a?b=c', 'http://mirror/a?b=c', new URL('nearpath://mirror/a?b=c')]) {
      const told = await (await nearpath.fetch(url, { method: 'POST', body: 'x' })).json();
      assert.deepEqual([told.path, told.query, told.body], ['/a', 'b=c', 'x']);
    }
  });

  test('all else goes out as ever', async () => {
    const answer = await nearpath.fetch(`${faas.url}/healthz`);
    assert.deepEqual([await answer.text(), answer.headers.get('x-nearpath-path')], ['OK', null]);
    await assert.rejects(nearpath.fetch('no scheme'), TypeError);
    await assert.rejects(nearpath.fetch('nearpath://No_Name'), ({ cause }) => /expected nearpath:\/\/NAME/.test(cause.message));
    await assert.rejects(nearpath.fetch('http://127.0.0.1:9/function/x'), TypeError);
  });

  test('connections are kept', async () => {
    const count = async () => Number(await (await fetch(`${faas.url}/seen`)).text());
    for (let k = 0; k < 5; k += 1) {
      await (await nearpath.fetch(at('mirror'))).text();
      await nearpath.call('mirror');
    }
    const before = await count();
    for (let k = 0; k < 5; k += 1) {
      await (await nearpath.fetch(at('mirror'))).text();
      await nearpath.call('mirror');
    }
    assert.ok((await count()) - before <= 1, 'a connection for a call');
  });

  test('a call says its way, and a call for later calls back', async () => {
    const answer = await nearpath.call('mirror.openfaas-fn', 'x', { path: '/a?b', deadline: 30_000, headers: { traceparent: TRACE } });
    assert.deepEqual([answer.path, answer.notNearer], ['http', 'caller_no_endpoint']);
    const { headers, path } = JSON.parse(answer.body);
    assert.deepEqual([path, headers.traceparent], ['/a', TRACE]);
    assert.match(headers['x-timeout'], /^[0-9]+m?s$/);
    const server = http.createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const called = once(server, 'request');
    const id = await nearpath.callLater('mirror', 'x', { callback: `http://127.0.0.1:${server.address().port}/` });
    const [request, response] = await called;
    assert.deepEqual([request.headers['x-call-id'], request.headers['x-function-name']], [id, 'mirror']);
    assert.equal(JSON.parse(Buffer.concat(await request.toArray())).body, 'x');
    response.end(() => server.close());
    await assert.rejects(nearpath.callLater('nobody'), { kind: 'platform', status: 404 });
  });

  test('a call is given up by its signal', async () => {
    await assert.rejects(nearpath.call('slow', '', { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    await assert.rejects(nearpath.call('mirror', '', { signal: AbortSignal.abort() }), { name: 'AbortError' });
  });
});
