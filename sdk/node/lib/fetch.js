'use strict';
// fetch, with calls of functions over the nearest path. Other URLs use the global fetch.

const dns = require('node:dns/promises');
const { Kept } = require('./kept');
const { Obstacle, Path } = require('./paths');
const { PATH, placed, refused, shown } = require('./shown');
const { target } = require('./urls');
const { NearpathError } = require('./words');

const MOST_REDIRECTS = 20;
const MOVED = new Set([301, 302, 303, 307, 308]);
/** The default header fields of fetch. */
const OWN = { accept: '*/*', 'accept-language': '*', 'user-agent': 'node' };

/** fetch for functions; `half` makes the calls. */
class Fetch {
  #half;

  constructor(half) {
    this.#half = half;
  }

  async fetch(input, init) {
    const url = input instanceof Request ? input.url : String(input);
    const wanted = target(url);
    if (wanted !== null) return this.#call({ input, init, url, wanted, redirects: 0 });
    if (!url.startsWith('nearpath:')) return globalThis.fetch(input, init);
    throw new TypeError('fetch failed', { cause: new Error(`invalid URL ${url}: expected nearpath://NAME or nearpath://NAME.NAMESPACE, in lower case`) });
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

  /** Returns the answer through shared memory, or the obstacle. */
  async #near(asked, request, body) {
    const { method, signal } = request;
    const headers = { ...OWN, ...Object.fromEntries(request.headers) };
    const how = { method, path: asked.wanted.path, headers, nearOnly: true, stream: true, signal };
    let answer;
    try {
      answer = await this.#half.call(asked.wanted.name, body, how);
    } catch (error) {
      return failed(error, asked.url, signal, body);
    }
    const response = await this.#moved(asked, request, body, answer);
    body?.taken?.();
    return { response };
  }

  /** Returns the answer, or the one to which it redirects. */
  async #moved(asked, request, body, answer) {
    const { location } = answer.headers;
    if (!MOVED.has(answer.status) || location === undefined || request.redirect === 'manual') {
      return shown(answer, request, asked.url, asked.redirects > 0);
    }
    await answer.stream.return();
    const fault = (text) => new TypeError('fetch failed', { cause: new Error(text) });
    if (request.redirect === 'error') throw fault('unexpected redirect');
    if (asked.redirects >= MOST_REDIRECTS) throw fault('redirect count exceeded');
    const [to, { method, status }] = [new URL(location, asked.url), { method: request.method, status: answer.status }];
    const becomesGet = status === 303 ? method !== 'GET' && method !== 'HEAD' : status < 303 && method === 'POST';
    const bytes = body instanceof Kept ? isOfRequest(asked) && body.all : body;
    if (!becomesGet && bytes !== null && !(bytes instanceof Uint8Array)) throw fault('a streamed body cannot be sent again');
    const headers = new Headers(request.headers);
    if (becomesGet) for (const name of ['content-encoding', 'content-language', 'content-location', 'content-type']) headers.delete(name);
    if (to.host !== new URL(asked.url).host) for (const name of ['authorization', 'cookie', 'host']) headers.delete(name);
    const init = { method: becomesGet ? 'GET' : method, headers, body: becomesGet ? null : bytes, signal: request.signal, redirect: request.redirect };
    const wanted = target(to.href);
    if (wanted === null) return globalThis.fetch(to, init);
    return this.#call({ input: to.href, init, url: to.href, wanted, redirects: asked.redirects + 1 });
  }

  async #far(input, init, { far, obstacle }) {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    for (const [name, value] of Object.entries({ ...this.#half.handedOn(), [PATH]: '?' })) {
      if (!headers.has(name)) headers.set(name, value);
    }
    // A Request made from another one cannot follow a redirect that keeps its body.
    const elsewhere = input instanceof Request && input.url !== far;
    const asked = elsewhere ? new Request(far, input) : input instanceof Request ? input : far;
    const response = await globalThis.fetch(asked, { ...init, headers });
    if (response.headers.has(PATH)) return response;
    const told = new Response(response.body, response);
    told.headers.set(PATH, `${Path.HTTP}; not_nearer=${obstacle}`);
    return placed(told, response.url, response.redirected);
  }
}

/** Returns the obstacle of a call that provably did not run, or the platform's answer; throws other errors in the form of fetch. */
function failed(error, url, signal, body) {
  const isOurs = error instanceof NearpathError; // else the call was cancelled, or its body failed
  if (isOurs && error.retryIsSafe && (body?.whole ?? true)) return { obstacle: error.path === Path.SHM ? Obstacle.NO_ROOM : Obstacle.NO_ENDPOINT };
  body?.leave?.();
  if (signal.aborted) throw error;
  if (error.kind === 'platform') return { response: refused(error, url) };
  throw new TypeError('fetch failed', { cause: error });
}

/** Whether the body belongs to a Request: it is usually complete, and fetch sends it again. */
function isOfRequest({ input, init }) {
  return input instanceof Request && (init?.body ?? null) === null;
}

/** Returns the outgoing request and its body, as bytes if possible. */
async function opened(input, init, wanted) {
  if (!process.env.NEARPATH_DISPATCH) return { body: null, obstacle: Obstacle.CALLER_NO_ENDPOINT };
  const request = new Request(input instanceof Request ? new Request(wanted.far, input) : wanted.far, init);
  const isOthers = request.headers.has('upgrade') || request.integrity !== ''; // needs a connection, or fetch itself
  if (isOthers) return { body: null, obstacle: Obstacle.UPGRADE };
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

module.exports = { Fetch };
