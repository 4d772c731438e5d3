'use strict';
// Errors of calls.

/** Error of a call without a response of the function. */
class NearpathError extends Error {
  constructor({ message, kind, function: name, path, retryIsSafe, status, reason, text }) {
    super(message);
    this.name = 'NearpathError';
    Object.assign(this, { kind, function: name, path: path ?? null, retryIsSafe });
    Object.assign(this, { status: status ?? null, reason: reason ?? null, text: text ?? null });
  }
}

module.exports = { NearpathError };
