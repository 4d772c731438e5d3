'use strict';
// fetch, with calls of functions over the nearest path. Other URLs use the global fetch.

const dns = require('node:dns/promises');
const { NearpathError } = require('./errors');
const { PATH_HEADER, toErrorResponse, toFetchResponse, withUrl } = require('./fetch_response');
const { Obstacle, Path } = require('./paths');
const { ReplayableBody } = require('./replayable_body');
const { targetOf } = require('./urls');

const MAX_REDIRECTS = 20;
const REDIRECT_STATUSES = new Set([301, 302, 303, 307, 308]);
/** The default header fields of fetch. */
const DEFAULT_HEADERS = { accept: '*/*', 'accept-language': '*', 'user-agent': 'node' };
const CONTENT_HEADERS = ['content-encoding', 'content-language', 'content-location', 'content-type'];

/** fetch for functions; the runtime makes the calls. */
class FunctionFetch {
  #runtime;

  constructor(runtime) {
    this.#runtime = runtime;
  }

  async fetch(input, init) {
    const url = input instanceof Request ? input.url : String(input);
    const target = targetOf(url);
    if (target !== null) return this.#call({ input, init, url, target, redirects: 0 });
    if (!url.startsWith('nearpath:')) return globalThis.fetch(input, init);
    const cause = new Error(`invalid URL ${url}: expected nearpath://NAME or nearpath://NAME.NAMESPACE, in lower case`);
    throw new TypeError('fetch failed', { cause });
  }

  /** Calls a function: through shared memory, else as the host of that name, else through the gateway. */
  async #call(call) {
    const { input, init, url, target } = call;
    let { body, obstacle, request } = await openRequest(input, init, target);
    if (obstacle === null) {
      const outcome = await this.#callShm(call, request, body);
      if (outcome.response) return outcome.response;
      ({ obstacle } = outcome);
    }
    const replayed = () => ({ ...init, ...headOf(request), body: body.replay?.() ?? body, duplex: 'half' });
    const args = body === null ? [input, init] : [url, replayed()];
    if (target.isBare && (await isHost(new URL(url).hostname))) return globalThis.fetch(...args);
    return this.#callGateway(...args, target.gatewayUrl, obstacle);
  }

  /** Returns the response through shared memory, or the obstacle. */
  async #callShm(call, request, body) {
    const { method, signal } = request;
    const headers = { ...DEFAULT_HEADERS, ...Object.fromEntries(request.headers) };
    const options = { method, path: call.target.path, headers, shmOnly: true, stream: true, signal };
    let received;
    try {
      received = await this.#runtime.call(call.target.name, body, options);
    } catch (error) {
      return outcomeOfError(error, call.url, signal, body);
    }
    const response = await this.#followRedirect(call, request, body, received);
    body?.dropBuffer?.();
    return { response };
  }

  /** Returns the response, or that of the URL to which it redirects. */
  async #followRedirect(call, request, body, received) {
    const { location } = received.headers;
    if (!REDIRECT_STATUSES.has(received.status) || location === undefined || request.redirect === 'manual') {
      return toFetchResponse(received, request, call.url, call.redirects > 0);
    }
    await received.stream.return();
    const fetchError = (text) => new TypeError('fetch failed', { cause: new Error(text) });
    if (request.redirect === 'error') throw fetchError('unexpected redirect');
    if (call.redirects >= MAX_REDIRECTS) throw fetchError('redirect count exceeded');
    const [to, { method, status }] = [new URL(location, call.url), { method: request.method, status: received.status }];
    const becomesGet = status === 303 ? method !== 'GET' && method !== 'HEAD' : status < 303 && method === 'POST';
    const bytes = body instanceof ReplayableBody ? isBodyOfRequest(call) && body.wholeBytes : body;
    if (!becomesGet && bytes !== null && !(bytes instanceof Uint8Array)) throw fetchError('a streamed body cannot be sent again');
    const headers = new Headers(request.headers);
    if (becomesGet) for (const name of CONTENT_HEADERS) headers.delete(name);
    if (to.host !== new URL(call.url).host) for (const name of ['authorization', 'cookie', 'host']) headers.delete(name);
    const { redirect, signal } = request;
    const init = { method: becomesGet ? 'GET' : method, headers, body: becomesGet ? null : bytes, signal, redirect };
    const target = targetOf(to.href);
    if (target === null) return globalThis.fetch(to, init);
    return this.#call({ input: to.href, init, url: to.href, target, redirects: call.redirects + 1 });
  }

  /** Calls a function through the gateway. */
  async #callGateway(input, init, gatewayUrl, obstacle) {
    const headers = new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined));
    for (const [name, value] of Object.entries({ ...this.#runtime.propagatedFields(), [PATH_HEADER]: '?' })) {
      if (!headers.has(name)) headers.set(name, value);
    }
    // A Request made from another one cannot follow a redirect that keeps its body.
    const hasOtherUrl = input instanceof Request && input.url !== gatewayUrl;
    const target = hasOtherUrl ? new Request(gatewayUrl, input) : input instanceof Request ? input : gatewayUrl;
    const received = await globalThis.fetch(target, { ...init, headers });
    if (received.headers.has(PATH_HEADER)) return received;
    const response = new Response(received.body, received);
    response.headers.set(PATH_HEADER, `${Path.HTTP}; obstacle=${obstacle}`);
    return withUrl(response, received.url, received.redirected);
  }
}

/**
 * Returns the obstacle of a call that provably did not run, or the platform's response.
 * It throws other errors in the form of fetch.
 */
function outcomeOfError(error, url, signal, body) {
  const isCallError = error instanceof NearpathError; // else the call was cancelled, or its body failed
  if (isCallError && error.retryIsSafe && (body?.isReplayable ?? true)) {
    return { obstacle: error.path === Path.SHM ? Obstacle.NO_ROOM : Obstacle.NO_ENDPOINT };
  }
  body?.discard?.();
  if (signal.aborted) throw error;
  if (error.kind === 'platform') return { response: toErrorResponse(error, url) };
  throw new TypeError('fetch failed', { cause: error });
}

/** Returns whether the body belongs to a Request: it is usually complete, and fetch sends it again. */
function isBodyOfRequest({ input, init }) {
  return input instanceof Request && (init?.body ?? null) === null;
}

/** Returns the outgoing request and its body, as bytes if possible. */
async function openRequest(input, init, target) {
  if (!process.env.NEARPATH_DISPATCH) return { body: null, obstacle: Obstacle.CALLER_NO_ENDPOINT };
  const url = target.gatewayUrl;
  const request = new Request(input instanceof Request ? new Request(url, input) : url, init);
  const needsFetch = request.headers.has('upgrade') || request.integrity !== ''; // a connection, or a check of the body
  if (needsFetch) return { body: null, obstacle: Obstacle.UPGRADE };
  if (request.signal.aborted) throw request.signal.reason;
  if (request.body === null) return { request, body: null, obstacle: null };
  const source = init?.body ?? null;
  const isStreamed = source === null || source instanceof ReadableStream || typeof source[Symbol.asyncIterator] === 'function';
  const body = isStreamed ? new ReplayableBody(request.body) : new Uint8Array(await request.arrayBuffer());
  return { request, body, obstacle: null };
}

function headOf({ method, headers, redirect, signal }) {
  return { method, headers, redirect, signal };
}

/** Returns whether a host has that name. */
async function isHost(name) {
  const address = await dns.lookup(name).catch(() => null);
  return address !== null;
}

module.exports = { FunctionFetch };
