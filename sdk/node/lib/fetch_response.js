'use strict';
// Conversion of responses through shared memory into responses of fetch.

const http = require('node:http');
const { pipeline } = require('node:stream');
const zlib = require('node:zlib');
const { Path } = require('./paths');

const BODILESS_STATUSES = new Set([101, 103, 204, 205, 304]);
const PATH_HEADER = 'x-nearpath-path';
// Sync flush yields the complete part of a truncated body, as undici does.
const GZIP = { flush: zlib.constants.Z_SYNC_FLUSH, finishFlush: zlib.constants.Z_SYNC_FLUSH };
const BROTLI = { flush: zlib.constants.BROTLI_OPERATION_FLUSH, finishFlush: zlib.constants.BROTLI_OPERATION_FLUSH };
/** Makers of decoders, by content coding; each gets the first part of the body. */
const DECODERS = {
  gzip: () => zlib.createGunzip(GZIP),
  'x-gzip': () => zlib.createGunzip(GZIP),
  // Some servers send deflate without the zlib header.
  deflate: (first) => ((first[0] & 0x0f) === 8 ? zlib.createInflate(GZIP) : zlib.createInflateRaw(GZIP)),
  br: () => zlib.createBrotliDecompress(BROTLI),
};

/** Converts a response through shared memory into a Response. */
function toFetchResponse(received, request, url, isRedirected) {
  const headers = new Headers(received.fields);
  headers.set(PATH_HEADER, Path.SHM);
  const { status, length } = received;
  const isBodiless = BODILESS_STATUSES.has(status);
  const isEmpty = request.method === 'HEAD' || isBodiless;
  if (length !== null && !isBodiless && (length > 0 || !isEmpty)) headers.set('content-length', String(length));
  if (isEmpty) received.stream.return();
  const body = isEmpty ? null : toReadableStream(decode(received.stream, headers.get('content-encoding')), request.signal);
  return withUrl(new Response(body, { status, statusText: http.STATUS_CODES[status] ?? '', headers }), url, isRedirected);
}

function toReadableStream(parts, signal) {
  return new ReadableStream(
    {
      type: 'bytes',
      async pull(controller) {
        const { done, value } = await parts.next().catch((error) => {
          throw signal.aborted ? error : new TypeError('terminated', { cause: error });
        });
        if (!done) return void controller.enqueue(new Uint8Array(value)); // a copy: the stream transfers its buffer
        controller.close();
        controller.byobRequest?.respond(0);
        return undefined;
      },
      cancel: () => parts.return(),
    },
    { highWaterMark: 0 },
  );
}

/** Decodes the content codings in reverse order; with an unknown coding it decodes none. */
function decode(parts, header) {
  const codings = (header ?? '').toLowerCase().split(',').map((each) => each.trim()).filter((each) => each !== '');
  if (!codings.every((each) => Object.hasOwn(DECODERS, each))) return parts;
  return codings.reduceRight((inner, each) => decodeOne(inner, DECODERS[each]), parts);
}

async function* decodeOne(parts, makeDecoder) {
  const { value: first, done } = await parts.next();
  if (done) return;
  const allParts = async function* allParts() {
    yield first;
    yield* parts;
  };
  yield* pipeline(allParts(), makeDecoder(first), () => {}); // the reader gets the error
}

/** Converts an error of the platform into a Response. */
function toErrorResponse(error, url) {
  const headers = { 'content-type': 'text/plain', 'x-nearpath-reason': error.reason ?? '', [PATH_HEADER]: Path.SHM };
  return withUrl(new Response(error.text ?? '', { status: error.status ?? 502, headers }), url, false);
}

/** Sets the url of a Response and of its clones. */
function withUrl(response, url, isRedirected) {
  const clone = () => withUrl(Response.prototype.clone.call(response), url, isRedirected);
  const [withoutFragment] = url.split('#', 1);
  return Object.defineProperties(response, {
    url: { value: withoutFragment }, redirected: { value: isRedirected }, type: { value: 'basic' }, clone: { value: clone },
  });
}

module.exports = { PATH_HEADER, toErrorResponse, toFetchResponse, withUrl };
