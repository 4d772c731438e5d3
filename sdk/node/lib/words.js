'use strict';
// Errors, payloads and header fields of the public interface.

class NearpathError extends Error {
  constructor({ message, kind, function: name, path, retryIsSafe, status, reason, text }) {
    super(message);
    this.name = 'NearpathError';
    Object.assign(this, { kind, function: name, path: path ?? null, retryIsSafe });
    Object.assign(this, { status: status ?? null, reason: reason ?? null, text: text ?? null });
  }
}

/** Converts a payload to bytes; text is UTF-8. */
function bytes(payload) {
  if (payload === undefined || payload === null) return Buffer.alloc(0);
  if (typeof payload === 'string') return Buffer.from(payload);
  if (Buffer.isBuffer(payload)) return payload;
  if (ArrayBuffer.isView(payload)) return Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength);
  if (payload instanceof ArrayBuffer) return Buffer.from(payload);
  throw new TypeError('invalid payload: expected a string, a Buffer, an ArrayBuffer or a view of one');
}

/** Whether a payload is streamed by iteration. */
function isPieces(payload) {
  if (payload === null || typeof payload !== 'object' || ArrayBuffer.isView(payload)) return false;
  return Symbol.asyncIterator in payload || (typeof payload.next === 'function' && Symbol.iterator in payload);
}

/** Converts an object to a list of alternating names and values. */
function inTurn(headers) {
  return Object.entries(headers ?? {}).flatMap(([name, value]) => [value].flat().flatMap((each) => [name, String(each)]));
}

/** Converts a list of alternating names and values to an object; a repeated name has its first value. */
function object(fields) {
  const headers = {};
  for (let k = 0; k < fields.length; k += 2) headers[fields[k]] ??= fields[k + 1];
  return headers;
}

/** Converts a list of alternating names and values to pairs. */
function inPairs(fields) {
  return Array.from({ length: fields.length / 2 }, (_, k) => [fields[2 * k], fields[2 * k + 1]]);
}

/** Converts a handler's return value for the native module. */
function answer(returned) {
  if (Array.isArray(returned)) return { ...answer(returned[1]), status: returned[0] };
  const plain = returned === undefined || returned === null || typeof returned === 'string';
  if (plain || ArrayBuffer.isView(returned) || returned instanceof ArrayBuffer) {
    return { status: 200, headers: [], body: bytes(returned) };
  }
  if (isPieces(returned)) return { status: 200, headers: [], body: bytes(null), pieces: returned };
  const { status = 200, headers, body, stream } = returned;
  const pieces = isPieces(body) ? body : stream; // a forwarded answer has a stream
  const head = { status, headers: inTurn(headers) };
  return pieces ? { ...head, body: bytes(null), pieces } : { ...head, body: bytes(body) };
}

function failed(error) {
  console.error(error);
  return { status: 500, headers: [], body: bytes(error instanceof Error ? `${error.name}: ${error.message}` : String(error)) };
}

module.exports = { NearpathError, bytes, inPairs, inTurn, isPieces, object, answer, failed };
