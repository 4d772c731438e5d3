'use strict';
// Conversion of payloads, header fields and handler results for the native module.

/** Converts a payload to bytes; text is UTF-8. */
function toBytes(payload) {
  if (payload === undefined || payload === null) return Buffer.alloc(0);
  if (typeof payload === 'string') return Buffer.from(payload);
  if (Buffer.isBuffer(payload)) return payload;
  if (ArrayBuffer.isView(payload)) return Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength);
  if (payload instanceof ArrayBuffer) return Buffer.from(payload);
  throw new TypeError('invalid payload: expected a string, a Buffer, an ArrayBuffer or a view of one');
}

/** Returns whether a payload is streamed by iteration. */
function isPieces(payload) {
  if (payload === null || typeof payload !== 'object' || ArrayBuffer.isView(payload)) return false;
  return Symbol.asyncIterator in payload || (typeof payload.next === 'function' && Symbol.iterator in payload);
}

/** Converts a header object to a list of alternating names and values. */
function toFieldList(headers) {
  return Object.entries(headers ?? {}).flatMap(([name, value]) => [value].flat().flatMap((each) => [name, String(each)]));
}

/** Converts a list of alternating names and values to a header object; a repeated name has its first value. */
function toHeaders(fields) {
  const headers = {};
  for (let k = 0; k < fields.length; k += 2) headers[fields[k]] ??= fields[k + 1];
  return headers;
}

/** Converts a list of alternating names and values to pairs. */
function toPairs(fields) {
  return Array.from({ length: fields.length / 2 }, (_, k) => [fields[2 * k], fields[2 * k + 1]]);
}

/** Converts a handler's result to a response for the native module. */
function toResponse(result) {
  if (Array.isArray(result)) return { ...toResponse(result[1]), status: result[0] };
  const isPlain = result === undefined || result === null || typeof result === 'string';
  if (isPlain || ArrayBuffer.isView(result) || result instanceof ArrayBuffer) {
    return { status: 200, headers: [], body: toBytes(result) };
  }
  if (isPieces(result)) return { status: 200, headers: [], body: toBytes(null), pieces: result };
  const { status = 200, headers, body, stream } = result;
  const pieces = isPieces(body) ? body : stream; // a forwarded response has a stream
  const head = { status, headers: toFieldList(headers) };
  return pieces ? { ...head, body: toBytes(null), pieces } : { ...head, body: toBytes(body) };
}

/** Logs a handler's exception and converts it to a response with status 500. */
function toErrorResponse(error) {
  console.error(error);
  const text = error instanceof Error ? `${error.name}: ${error.message}` : String(error);
  return { status: 500, headers: [], body: toBytes(text) };
}

module.exports = { isPieces, toBytes, toErrorResponse, toFieldList, toHeaders, toPairs, toResponse };
