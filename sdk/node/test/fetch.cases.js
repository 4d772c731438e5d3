'use strict';
// Tests of fetch that hold over every path.

const assert = require('node:assert/strict');
const { test } = require('node:test');

/** `urlOf` returns the URL of a path; `reportedPath` is the expected report; `names` has the paths of certain behaviours. */
function fetchCases({ urlOf, reportedPath, names }) {
  const { fetch } = require('..');

  test('fetch returns a Response with the path of the call', async () => {
    const response = await fetch(`${urlOf('mirror')}?a=b%20c`, { headers: { 'X-One': '1' } });
    assert.ok(response instanceof Response);
    const mirrored = await response.json();
    assert.deepEqual([response.status, response.ok, response.statusText, mirrored.method], [200, true, 'OK', 'GET']);
    assert.match(mirrored.query ?? mirrored.path, /a=b%20c/);
    assert.equal(new Headers(mirrored.headers).get('x-one'), '1');
    assert.equal(response.headers.get('x-nearpath-path'), reportedPath);
    assert.equal(response.url, `${urlOf('mirror')}?a=b%20c`);
  });

  test('fetch sends every kind of body', async () => {
    const pieces = async function* pieces() {
      yield Buffer.from('one');
      yield Buffer.from('two');
    };
    for (const [body, expected] of [
      ['text', 'text'],
      [Buffer.from('xy'), 'xy'],
      [new Uint8Array([120, 121]).buffer, 'xy'],
      [new URLSearchParams({ a: '1' }), 'a=1'],
      [new Blob(['blob']), 'blob'],
      [new Blob(['stream']).stream(), 'stream'],
      [pieces(), 'onetwo'],
    ]) {
      const mirrored = await (await fetch(urlOf('mirror'), { method: 'POST', body, duplex: 'half' })).json();
      assert.deepEqual([mirrored.method, mirrored.body], ['POST', expected]);
    }
    const request = new Request(urlOf('mirror'), { method: 'PUT', body: 'request', headers: { 'X-One': '1' } });
    const mirrored = await (await fetch(request)).json();
    assert.deepEqual([mirrored.method, mirrored.body], ['PUT', 'request']);
  });

  test('fetch follows redirects', async () => {
    const response = await fetch(urlOf('moved'), { method: 'POST', body: 'x' });
    assert.deepEqual([response.redirected, response.headers.get('x-nearpath-path')?.split(';')[0]], [true, reportedPath.split(';')[0]]);
    const mirrored = await response.json();
    assert.deepEqual([mirrored.method, mirrored.body], ['GET', '']);
    assert.match(mirrored.path, /moved/);
    assert.equal((await fetch(urlOf('moved'), { redirect: 'manual' })).status, 302);
    await assert.rejects(fetch(urlOf('moved'), { redirect: 'error' }), TypeError);
  });

  test('fetch handles content codings, cookies, HEAD and statuses', async () => {
    assert.equal(await (await fetch(urlOf('packed'))).text(), 'unpacked');
    assert.deepEqual((await fetch(urlOf('cookies'))).headers.getSetCookie().map((cookie) => cookie.slice(0, 5)), ['one=1', 'two=2']);
    const head = await fetch(urlOf('mirror'), { method: 'HEAD' });
    assert.deepEqual([head.status, await head.text()], [200, '']);
    assert.deepEqual([(await fetch(urlOf(names.teapot))).status, (await fetch(urlOf(names.teapot))).ok], [418, false]);
  });

  test('an aborted signal rejects fetch with its reason', async () => {
    await assert.rejects(fetch(urlOf(names.slow), { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    const controller = new AbortController();
    setTimeout(() => controller.abort(new RangeError('enough')), 20);
    await assert.rejects(fetch(urlOf(names.slow), { signal: controller.signal }), RangeError);
    await assert.rejects(fetch(urlOf('mirror'), { signal: AbortSignal.abort() }), { name: 'AbortError' });
  });

  test('a truncated response and a failing body are TypeErrors', async () => {
    await assert.rejects((await fetch(urlOf(names.truncated))).text(), TypeError);
    // Over HTTP the global fetch decodes. On a busy machine that of Node 20 may hang after a decoding error.
    if (reportedPath === 'shm') await assert.rejects((await fetch(urlOf('bad-gzip'))).text(), TypeError);
    const failing = async function* failing() {
      yield Buffer.from('one');
      throw new RangeError('body failed');
    };
    await assert.rejects(fetch(urlOf('mirror'), { method: 'POST', body: failing(), duplex: 'half' }), TypeError);
  });

  test('a Request sends its body again after a redirect with status 307', async () => {
    const mirrored = await (await fetch(new Request(urlOf('kept'), { method: 'POST', body: 'once more' }))).json();
    assert.deepEqual([mirrored.method, mirrored.body], ['POST', 'once more']);
    await assert.rejects(fetch(urlOf('kept'), { method: 'POST', body: new Blob(['streamed']).stream(), duplex: 'half' }), TypeError);
  });

  test('a Response has a length, clones and BYOB readers', async () => {
    const response = await fetch(`${urlOf('long')}#fragment`);
    assert.deepEqual([response.headers.get('content-length'), response.type, response.url], ['300000', 'basic', urlOf('long')]);
    const copy = response.clone();
    assert.deepEqual([copy.url, copy.type, (await copy.arrayBuffer()).byteLength], [urlOf('long'), 'basic', 300_000]);
    const reader = response.body.getReader();
    assert.ok((await reader.read()).value instanceof Uint8Array);
    await reader.cancel();
    const byob = (await fetch(urlOf('long'))).body.getReader({ mode: 'byob' });
    assert.equal((await byob.read(new Uint8Array(10))).value.length, 10);
    await byob.cancel();
    assert.equal((await fetch(urlOf('long'), { method: 'HEAD' })).headers.get('content-length'), '300000');
  });

  test('fetch sends its default user agent', async () => {
    const { headers } = await (await fetch(urlOf('mirror'), { headers: { accept: 'text/x' } })).json();
    assert.deepEqual([new Headers(headers).get('accept'), new Headers(headers).get('user-agent')], ['text/x', 'node']);
  });
}

module.exports = { fetchCases };
