'use strict';
// fetch, with calls of functions over the nearest path there is. Everything else goes out as ever.

const dns = require('node:dns/promises');
const http = require('node:http');
const { Duplex } = require('node:stream');
const zlib = require('node:zlib');
const { Kept } = require('./kept');
const { NearpathError } = require('./words');
const { target } = require('./urls');

const MOST_REDIRECTS = 20;
const MOVED = new Set([301, 302, 303, 307, 308]);
const BODILESS = new Set([101, 103, 204, 205, 304]);
const PATH = 'x-nearpath-path';
const UNPACK = {
  gzip: () => new DecompressionStream('gzip'),
  'x-gzip': () => new DecompressionStream('gzip'),
  deflate: () => new DecompressionStream('deflate'),
  br: () => Duplex.toWeb(zlib.createBrotliDecompress()),
};

/** What a call of a function is made of. `half` makes calls. */
class Fetch {
  #half;

  constructor(half) {
    this.#half = half;
  }

  async fetch(input, init) {
    const url = input instanceof Request ? input.url : String(input);
    const wanted = target(url);
    return wanted === null ? globalThis.fetch(input, init) : this.#call({ input, init, url, wanted, redirects: 0 });
  }

  async #call(asked) {
    const { input, init, url, wanted } = asked;
    let { body, obstacle, request } = await opened(input, init, wanted);
    if (obstacle === null) {
      const told = await this.#near(asked, request, body);
      if (told.response) return told.response;
      ({ obstacle } = told);
    }
    const again = body === null ? [input, init] : [url, { ...init, ...headOf(request), body: body.again?.() ?? body, duplex: 'half' }];
    if (wanted.bare && (await isHost(new URL(url).hostname))) return globalThis.fetch(...again);
    return this.#far(...again, { ...wanted, obstacle });
  }

  /** The answer through memory, or what stood against it. */
  async #near(asked, request, body) {
    const how = { method: request.method, path: asked.wanted.path, headers: Object.fromEntries(request.headers), nearOnly: true, stream: true };
    try {
      const answer = await this.#half.call(asked.wanted.name, body, { ...how, signal: request.signal });
      body?.taken?.();
      return { response: await this.#moved(asked, request, body, answer) };
    } catch (error) {
      const isOurs = error instanceof NearpathError; // else it was given up, or its body failed
      if (isOurs && error.retryIsSafe && (body?.whole ?? true)) return { obstacle: error.path === 'shm' ? 'no_room' : 'no_party' };
      body?.leave?.();
      if (!isOurs) throw error;
      if (error.kind === 'platform') return { response: refused(error, asked.url) };
      throw new TypeError('fetch failed', { cause: error });
    }
  }

  /** An answer, or what it redirects to. */
  async #moved(asked, request, body, answer) {
    const { location } = answer.headers;
    if (!MOVED.has(answer.status) || location === undefined || request.redirect === 'manual') return shown(answer, request, asked);
    await answer.stream.return();
    const fault = (text) => new TypeError('fetch failed', { cause: new Error(text) });
    if (request.redirect === 'error') throw fault('unexpected redirect');
    if (asked.redirects >= MOST_REDIRECTS) throw fault('redirect count exceeded');
    const [to, { method, status }] = [new URL(location, asked.url), { method: request.method, status: answer.status }];
    const becomesGet = status === 303 ? method !== 'GET' && method !== 'HEAD' : status < 303 && method === 'POST';
    if (!becomesGet && body !== null && !(body instanceof Uint8Array)) throw fault('a body that comes bit by bit cannot be sent again');
    const headers = new Headers(request.headers);
    if (becomesGet) for (const name of ['content-encoding', 'content-language', 'content-location', 'content-type']) headers.delete(name);
    if (to.host !== new URL(asked.url).host) for (const name of ['authorization', 'cookie', 'host']) headers.delete(name);
    const init = { method: becomesGet ? 'GET' : method, headers, body: becomesGet ? null : body, signal: request.signal, redirect: request.redirect };
    const wanted = target(to.href);
    if (wanted === null) return globalThis.fetch(to, init);
    return this.#call({ input: to.href, init, url: to.href, wanted, redirects: asked.redirects + 1 });
  }

  async #far(input, init, { far, obstacle }) {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    for (const [name, value] of Object.entries({ ...this.#half.handedOn(), [PATH]: '?' })) {
      if (!headers.has(name)) headers.set(name, value);
    }
    const response = await globalThis.fetch(input instanceof Request ? new Request(far, input) : far, { ...init, headers });
    if (response.headers.has(PATH)) return response;
    const told = new Response(response.body, response);
    told.headers.set(PATH, `http; not_nearer=${obstacle}`);
    return placed(told, response.url, response.redirected);
  }
}

/** A request as it goes out: its head, and its body as bytes where that is possible. */
async function opened(input, init, wanted) {
  if (!process.env.NEARPATH_DISPATCH) return { body: null, obstacle: 'caller_no_party' };
  const request = new Request(input instanceof Request ? new Request(wanted.far, input) : wanted.far, init);
  if (request.headers.has('upgrade')) return { body: null, obstacle: 'upgrade' };
  if (request.signal.aborted) throw request.signal.reason;
  if (request.body === null) return { request, body: null, obstacle: null };
  const given = init?.body ?? null;
  const comes = given === null || given instanceof ReadableStream || typeof given[Symbol.asyncIterator] === 'function';
  return { request, body: comes ? new Kept(request.body) : new Uint8Array(await request.arrayBuffer()), obstacle: null };
}

function headOf({ method, headers, redirect, signal }) {
  return { method, headers, redirect, signal };
}

/** Whether a host has that name. */
async function isHost(name) {
  const found = await dns.lookup(name).catch(() => null);
  return found !== null;
}

/** An answer through memory as a Response. */
function shown(answer, request, { url, redirects }) {
  const headers = new Headers(answer.fields);
  headers.set(PATH, 'shm');
  const { status } = answer;
  const empty = request.method === 'HEAD' || BODILESS.has(status);
  if (empty) answer.stream.return();
  const body = empty ? null : unpacked(readable(answer.stream), headers.get('content-encoding'));
  return placed(new Response(body, { status, statusText: http.STATUS_CODES[status] ?? '', headers }), url, redirects > 0);
}

function readable(parts) {
  return new ReadableStream(
    {
      async pull(controller) {
        const { done, value } = await parts.next();
        if (done) controller.close();
        else controller.enqueue(new Uint8Array(value.buffer, value.byteOffset, value.byteLength));
      },
      cancel: () => parts.return(),
    },
    { highWaterMark: 0 },
  );
}

function unpacked(body, coding) {
  const unpack = UNPACK[(coding ?? '').trim().toLowerCase()];
  return unpack ? body.pipeThrough(unpack()) : body;
}

/** What the platform answered is an answer. */
function refused(error, url) {
  const headers = { 'content-type': 'text/plain', 'x-nearpath-reason': error.reason ?? '', [PATH]: 'shm' };
  return placed(new Response(error.text ?? '', { status: error.status ?? 502, headers }), url, false);
}

function placed(response, url, redirected) {
  return Object.defineProperties(response, { url: { value: url }, redirected: { value: redirected } });
}

module.exports = { Fetch };
