'use strict';
// fetch with an OpenFaaS gateway.

const assert = require('node:assert/strict');
const { once } = require('node:events');
const http = require('node:http');
const { after, describe, test } = require('node:test');

const { fetchCases } = require('./fetch.cases');
const { startOpenFaaS } = require('./fixtures');
const { gatewayUrl, targetOf } = require('../lib/urls');

const GATEWAY_VARIABLES = ['NEARPATH_GATEWAY', 'gateway_url', 'gateway_hostname', 'OPENFAAS_URL', 'gateway'];
const TRACE = '00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01';

/** Runs a function with these variables for the gateway, and no others. */
function withGatewayVariables(variables, run) {
  const before = Object.fromEntries(GATEWAY_VARIABLES.map((name) => [name, process.env[name]]));
  for (const name of GATEWAY_VARIABLES) delete process.env[name];
  Object.assign(process.env, variables);
  try {
    return run();
  } finally {
    for (const name of GATEWAY_VARIABLES) {
      if (before[name] === undefined) delete process.env[name];
      else process.env[name] = before[name];
    }
  }
}

test('targetOf recognizes the URLs of functions', () => {
  withGatewayVariables({ NEARPATH_GATEWAY: 'http://faas:31112' }, () => {
    for (const [url, name, path, atGateway] of [
      ['http://gateway:8080/function/echo', 'echo', '/', 'http://faas:31112/function/echo'],
      ['http://gateway.openfaas:8080/function/echo.dev/a/b?c=d', 'echo.dev', '/a/b?c=d'],
      ['http://faas:31112/function/echo?c=d', 'echo', '/?c=d'],
      ['nearpath://echo', 'echo', '/', 'http://faas:31112/function/echo'],
      ['nearpath://echo.dev/a?b', 'echo.dev', '/a?b', 'http://faas:31112/function/echo.dev/a?b'],
      ['http://echo/a', 'echo', '/a', 'http://faas:31112/function/echo/a'],
    ]) {
      const found = targetOf(url);
      assert.deepEqual([found?.name, found?.path, found?.gatewayUrl], [name, path, atGateway ?? url], url);
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
      assert.equal(targetOf(url), null, url);
    }
  });
});

test('targetOf keeps a gateway URL without variables', () => {
  assert.equal(withGatewayVariables({}, () => targetOf('http://gateway/function/echo/').gatewayUrl), 'http://gateway/function/echo/');
});

test('gatewayUrl uses the first variable that is set', () => {
  for (const [variables, url] of [
    [{}, 'http://gateway:8080'],
    [{ OPENFAAS_URL: 'http://127.0.0.1:31112/', gateway: 'http://g' }, 'http://127.0.0.1:31112'],
    [{ gateway: 'gateway.openfaas:8080' }, 'http://gateway.openfaas:8080'],
    [{ gateway_hostname: 'g', OPENFAAS_URL: 'http://o' }, 'http://g:8080'],
    [{ NEARPATH_GATEWAY: 'http://n:1', gateway_url: 'http://u' }, 'http://n:1'],
  ]) {
    assert.equal(withGatewayVariables(variables, gatewayUrl), url);
  }
});

describe('with OpenFaaS', async () => {
  const faas = await startOpenFaaS();
  process.env.NEARPATH_GATEWAY = faas.url;
  delete process.env.NEARPATH_DISPATCH;
  const nearpath = require('..');
  after(() => faas.stop());
  const urlOf = (path) => `${faas.url}/function/${path}`;

  const names = { teapot: 'teapot', slow: 'slow', truncated: 'truncated' };
  fetchCases({ urlOf, reportedPath: 'http; obstacle=caller_no_endpoint', names });

  test('fetch accepts function names instead of gateway URLs', async () => {
    for (const url of ['nearpath://mirror/a?b=c', 'nearpath://mirror.openfaas-fn/a?b=c', 'http://mirror/a?b=c', new URL('nearpath://mirror/a?b=c')]) {
      const mirrored = await (await nearpath.fetch(url, { method: 'POST', body: 'x' })).json();
      assert.deepEqual([mirrored.path, mirrored.query, mirrored.body], ['/a', 'b=c', 'x']);
    }
  });

  test('fetch passes other URLs to the global fetch', async () => {
    const response = await nearpath.fetch(`${faas.url}/healthz`);
    assert.deepEqual([await response.text(), response.headers.get('x-nearpath-path')], ['OK', null]);
    await assert.rejects(nearpath.fetch('no scheme'), TypeError);
    await assert.rejects(nearpath.fetch('nearpath://No_Name'), ({ cause }) => /expected nearpath:\/\/NAME/.test(cause.message));
    await assert.rejects(nearpath.fetch('http://127.0.0.1:9/function/x'), TypeError);
  });

  test('connections to the gateway are reused', async () => {
    const count = async () => Number(await (await fetch(`${faas.url}/seen`)).text());
    for (let k = 0; k < 5; k += 1) {
      await (await nearpath.fetch(urlOf('mirror'))).text();
      await nearpath.call('mirror');
    }
    const before = await count();
    for (let k = 0; k < 5; k += 1) {
      await (await nearpath.fetch(urlOf('mirror'))).text();
      await nearpath.call('mirror');
    }
    assert.ok((await count()) - before <= 1, 'a connection for a call');
  });

  test('a call reports its path, and a queued call invokes its callback', async () => {
    const response = await nearpath.call('mirror.openfaas-fn', 'x', { path: '/a?b', deadline: 30_000, headers: { traceparent: TRACE } });
    assert.deepEqual([response.path, response.obstacle], ['http', 'caller_no_endpoint']);
    const { headers, path } = JSON.parse(response.body);
    assert.deepEqual([path, headers.traceparent], ['/a', TRACE]);
    assert.match(headers['x-timeout'], /^[0-9]+m?s$/);
    const server = http.createServer().listen(0, '127.0.0.1');
    await once(server, 'listening');
    const called = once(server, 'request');
    const id = await nearpath.callLater('mirror', 'x', { callback: `http://127.0.0.1:${server.address().port}/` });
    const [callback, reply] = await called;
    assert.deepEqual([callback.headers['x-call-id'], callback.headers['x-function-name']], [id, 'mirror']);
    assert.equal(JSON.parse(Buffer.concat(await callback.toArray())).body, 'x');
    reply.end(() => server.close());
    await assert.rejects(nearpath.callLater('unknown'), { kind: 'platform', status: 404 });
  });

  test('an aborted signal rejects a call with its reason', async () => {
    await assert.rejects(nearpath.call('slow', '', { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    await assert.rejects(nearpath.call('mirror', '', { signal: AbortSignal.abort() }), { name: 'AbortError' });
  });
});
