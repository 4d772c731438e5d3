'use strict';
// What a user of fetch does with a function, the same over every path.

const assert = require('node:assert/strict');
const { test } = require('node:test');

/** `at` gives the URL of a path, `way` is what answers say, `names` are the paths at which functions do certain things. */
function scenes({ at, way, names }) {
  const { fetch } = require('..');

  test('an answer', async () => {
    const answer = await fetch(`${at('mirror')}?a=b%20c`, { headers: { 'X-One': '1' } });
    assert.ok(answer instanceof Response);
    const told = await answer.json();
    assert.deepEqual([answer.status, answer.ok, answer.statusText, told.method], [200, true, 'OK', 'GET']);
    assert.match(told.query ?? told.path, /a=b%20c/);
    assert.equal(new Headers(told.headers).get('x-one'), '1');
    assert.equal(answer.headers.get('x-nearpath-path'), way);
    assert.equal(answer.url, `${at('mirror')}?a=b%20c`);
  });

  test('every kind of body', async () => {
    const pieces = async function* pieces() {
      yield Buffer.from('one');
      yield Buffer.from('two');
    };
    for (const [body, wanted] of [
      ['text', 'text'],
      [Buffer.from('xy'), 'xy'],
      [new Uint8Array([120, 121]).buffer, 'xy'],
      [new URLSearchParams({ a: '1' }), 'a=1'],
      [new Blob(['blob']), 'blob'],
      [new Blob(['stream']).stream(), 'stream'],
      [pieces(), 'onetwo'],
    ]) {
      const told = await (await fetch(at('mirror'), { method: 'POST', body, duplex: 'half' })).json();
      assert.deepEqual([told.method, told.body], ['POST', wanted]);
    }
    const request = new Request(at('mirror'), { method: 'PUT', body: 'request', headers: { 'X-One': '1' } });
    const told = await (await fetch(request)).json();
    assert.deepEqual([told.method, told.body], ['PUT', 'request']);
  });

  test('redirects', async () => {
    const answer = await fetch(at('moved'), { method: 'POST', body: 'x' });
    assert.deepEqual([answer.redirected, answer.headers.get('x-nearpath-path')?.split(';')[0]], [true, way.split(';')[0]]);
    const told = await answer.json();
    assert.deepEqual([told.method, told.body], ['GET', '']);
    assert.match(told.path, /moved/);
    assert.equal((await fetch(at('moved'), { redirect: 'manual' })).status, 302);
    await assert.rejects(fetch(at('moved'), { redirect: 'error' }), TypeError);
  });

  test('packed answers, cookies, HEAD, statuses', async () => {
    assert.equal(await (await fetch(at('packed'))).text(), 'unpacked');
    assert.deepEqual((await fetch(at('cookies'))).headers.getSetCookie().map((cookie) => cookie.slice(0, 5)), ['one=1', 'two=2']);
    const head = await fetch(at('mirror'), { method: 'HEAD' });
    assert.deepEqual([head.status, await head.text()], [200, '']);
    assert.deepEqual([(await fetch(at(names.teapot))).status, (await fetch(at(names.teapot))).ok], [418, false]);
  });

  test('who gives up is heard', async () => {
    await assert.rejects(fetch(at(names.slow), { signal: AbortSignal.timeout(50) }), { name: 'TimeoutError' });
    const given = new AbortController();
    setTimeout(() => given.abort(new RangeError('enough')), 20);
    await assert.rejects(fetch(at(names.slow), { signal: given.signal }), RangeError);
    await assert.rejects(fetch(at('mirror'), { signal: AbortSignal.abort() }), { name: 'AbortError' });
  });

  test('an answer that breaks off, and a body that does, are TypeErrors', async () => {
    await assert.rejects((await fetch(at(names.cut))).text(), TypeError);
    // Over HTTP it is fetch itself that unpacks, and on a busy machine Node 20's sometimes never ends when it cannot.
    if (way === 'shm') await assert.rejects((await fetch(at('badly-packed'))).text(), TypeError);
    const breaks = async function* breaks() {
      yield Buffer.from('one');
      throw new RangeError('mine');
    };
    await assert.rejects(fetch(at('mirror'), { method: 'POST', body: breaks(), duplex: 'half' }), TypeError);
  });

  test('a Request keeps its body at a redirect that keeps it', async () => {
    const told = await (await fetch(new Request(at('kept'), { method: 'POST', body: 'once more' }))).json();
    assert.deepEqual([told.method, told.body], ['POST', 'once more']);
    await assert.rejects(fetch(at('kept'), { method: 'POST', body: new Blob(['gone']).stream(), duplex: 'half' }), TypeError);
  });

  test('the length, a copy, and a reader with a buffer of its own', async () => {
    const answer = await fetch(`${at('long')}#fragment`);
    assert.deepEqual([answer.headers.get('content-length'), answer.type, answer.url], ['300000', 'basic', at('long')]);
    const copy = answer.clone();
    assert.deepEqual([copy.url, copy.type, (await copy.arrayBuffer()).byteLength], [at('long'), 'basic', 300_000]);
    const reader = answer.body.getReader();
    assert.ok((await reader.read()).value instanceof Uint8Array);
    await reader.cancel();
    const own = (await fetch(at('long'))).body.getReader({ mode: 'byob' });
    assert.equal((await own.read(new Uint8Array(10))).value.length, 10);
    await own.cancel();
    assert.equal((await fetch(at('long'), { method: 'HEAD' })).headers.get('content-length'), '300000');
  });

  test('what fetch says of itself', async () => {
    const { headers } = await (await fetch(at('mirror'), { headers: { accept: 'text/x' } })).json();
    assert.deepEqual([new Headers(headers).get('accept'), new Headers(headers).get('user-agent')], ['text/x', 'node']);
  });
}

module.exports = { scenes };
