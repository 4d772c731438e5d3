'use strict';
// Conversion of answers through shared memory into responses of fetch.

const http = require('node:http');
const { pipeline } = require('node:stream');
const zlib = require('node:zlib');
const { Path } = require('./paths');

const BODILESS = new Set([101, 103, 204, 205, 304]);
const PATH = 'x-nearpath-path';
// Sync flush yields the complete part of a truncated body, as undici does.
const GZIP = { flush: zlib.constants.Z_SYNC_FLUSH, finishFlush: zlib.constants.Z_SYNC_FLUSH };
const BROTLI = { flush: zlib.constants.BROTLI_OPERATION_FLUSH, finishFlush: zlib.constants.BROTLI_OPERATION_FLUSH };
const UNPACK = {
  gzip: () => zlib.createGunzip(GZIP),
  'x-gzip': () => zlib.createGunzip(GZIP),
  // Some servers send deflate without the zlib header.
  deflate: (first) => ((first[0] & 0x0f) === 8 ? zlib.createInflate(GZIP) : zlib.createInflateRaw(GZIP)),
  br: () => zlib.createBrotliDecompress(BROTLI),
};

/** Converts an answer through shared memory into a Response. */
function shown(answer, request, url, redirected) {
  const headers = new Headers(answer.fields);
  headers.set(PATH, Path.SHM);
  const { status, length } = answer;
  const empty = request.method === 'HEAD' || BODILESS.has(status);
  if (length !== null && !BODILESS.has(status) && (length > 0 || !empty)) headers.set('content-length', String(length));
  if (empty) answer.stream.return();
  const body = empty ? null : readable(unpacked(answer.stream, headers.get('content-encoding')), request.signal);
  return placed(new Response(body, { status, statusText: http.STATUS_CODES[status] ?? '', headers }), url, redirected);
}

function readable(parts, signal) {
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
function unpacked(parts, coding) {
  const codings = (coding ?? '').toLowerCase().split(',').map((each) => each.trim()).filter((each) => each !== '');
  if (!codings.every((each) => Object.hasOwn(UNPACK, each))) return parts;
  return codings.reduceRight((inner, each) => through(inner, UNPACK[each]), parts);
}

async function* through(parts, make) {
  const { value: first, done } = await parts.next();
  if (done) return;
  const all = async function* all() {
    yield first;
    yield* parts;
  };
  yield* pipeline(all(), make(first), () => {}); // the reader gets the error
}

/** Converts an error of the platform into a Response. */
function refused(error, url) {
  const headers = { 'content-type': 'text/plain', 'x-nearpath-reason': error.reason ?? '', [PATH]: Path.SHM };
  return placed(new Response(error.text ?? '', { status: error.status ?? 502, headers }), url, false);
}

/** Sets the url of a Response and of its clones. */
function placed(response, url, redirected) {
  const clone = () => placed(Response.prototype.clone.call(response), url, redirected);
  const [from] = url.split('#', 1);
  return Object.defineProperties(response, {
    url: { value: from }, redirected: { value: redirected }, type: { value: 'basic' }, clone: { value: clone },
  });
}

module.exports = { PATH, placed, refused, shown };
