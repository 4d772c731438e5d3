/** Functions that take calls and make them, over the nearest path there is: shared memory on one machine, HTTP elsewhere. */

import type { Path } from './lib/paths';
export type { Path } from './lib/paths';

export type Payload = string | ArrayBuffer | ArrayBufferView | null | undefined;
/** Sent as it yields. */
export type Pieces = AsyncIterable<Payload> | Iterator<Payload>;
export type Headers = Record<string, string | string[]>;

export interface Request {
  readonly method: string;
  /** What follows the function's name, with the query. */
  readonly path: string;
  /** Names are in lower case; of a name that comes more than once the first value. */
  readonly headers: Record<string, string>;
  readonly body: Buffer;
  /** NAME.NAMESPACE of the function that calls, as the node says; null: the gateway. */
  readonly caller: string | null;
  readonly cameOver: Path;
  /** One way: the answer goes nowhere. */
  readonly isEvent: boolean;
  /** Of an event that was published. */
  readonly topic: string | null;
  /** The payload as it comes, with `serve(…, { stream: true })`; `body` is empty then. Else it yields the body, once. */
  readonly stream: AsyncIterableIterator<Buffer>;
  /** Milliseconds that the caller still waits; null: it did not say. */
  readonly timeLeft: number | null;
  /** Aborted when the caller no longer waits. */
  readonly signal: AbortSignal;
}

export interface Response {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: Buffer;
  /** Every header field as it came, a pair each. */
  readonly fields: [name: string, value: string][];
  /** The way that the call took, as the platform tells. */
  readonly path: Path;
  /** What stood against a nearer path: a name that `nearpath paths` explains; null: there is no nearer one. */
  readonly notNearer: string | null;
  readonly instance: number | null;
  /** Bytes of the whole body, as its sender said; null: it did not know. */
  readonly length: number | null;
}

export interface Answer {
  status?: number;
  headers?: Headers;
  body?: Payload | Pieces;
}

export interface Streamed extends Response {
  /** The body as it comes; `body` is empty. Leaving a loop over it tells the callee that nobody reads. */
  readonly stream: AsyncIterableIterator<Buffer>;
}

export interface Published {
  /** Functions that subscribe and to one of whose instances the event went. */
  readonly sent: number;
  /** Functions that subscribe and whose instances had no room for it. */
  readonly missed: number;
}

export interface How {
  method?: string;
  path?: string;
  headers?: Headers;
  /** Milliseconds; a call inside a handler takes no longer than its own caller waits, even without this. */
  deadline?: number;
  /** Running it twice does no harm: made once more when the called instance died. */
  idempotent?: boolean;
  /** Shared memory or an error of kind `unsent`, never HTTP. */
  nearOnly?: boolean;
  /** Gives the call up: it rejects with the signal's reason, and the callee is told. */
  signal?: AbortSignal;
  /** The answer is there when it begins, and is read as it comes. A deadline is for all of it. */
  stream?: boolean;
}

export class NearpathError extends Error {
  readonly kind: 'name' | 'head' | 'unsent' | 'died' | 'timeout' | 'cut' | 'too_large' | 'platform' | 'listen';
  readonly function: string;
  readonly path: Path | null;
  /** The call provably did not run. */
  readonly retryIsSafe: boolean;
  /** Of the platform's answer. */
  readonly status: number | null;
  readonly reason: string | null;
  /** Of the platform's answer, for people. */
  readonly text: string | null;
}

export type Returned = Answer | Streamed | Payload | Pieces | [number, Answer | Streamed | Payload | Pieces];

/** Serves until the process is told to stop (SIGTERM, SIGINT), and finishes calls that are open. */
export function serve(
  handler: (request: Request) => Returned | Promise<Returned>,
  how?: {
    /** The handler is called when a request begins. */
    stream?: boolean;
  },
): Promise<void>;
/** Calls a function and waits for its answer, whatever status that has. */
export function call(name: string, payload: Payload | Pieces, how: How & { stream: true }): Promise<Streamed>;
export function call(name: string, payload?: Payload | Pieces, how?: How): Promise<Response>;
/** Calls several functions at once; the answers come in the same order. */
export function gather(calls: [name: string, payload?: Payload][], how?: How): Promise<Response[]>;
/**
 * `fetch`, with calls of functions over the nearest path there is: `http://gateway:8080/function/NAME` (any host named gateway, or the
 * one that the environment names), `nearpath://NAME`, and `http://NAME` where the domain knows the function, or no host has that name.
 * The answer's header `X-Nearpath-Path` says which way it took. Everything else goes to the global `fetch`.
 */
export const fetch: typeof globalThis.fetch;
/** The fields with which another client hands on the trace and the deadline of the request whose handler runs. */
export function handedOn(): { traceparent?: string; 'x-timeout'?: string };
/** Has a function called later: the gateway queues the call, and POSTs the answer to `callback`. Its id, if the gateway gives one. */
export function callLater(
  name: string,
  payload?: Payload,
  how?: Pick<How, 'method' | 'path' | 'headers'> & { callback?: string | URL },
): Promise<string | null>;
/** Sends an event: nobody answers. */
export function notify(name: string, payload?: Payload, how?: How): Promise<void>;
/** Sends an event to one instance of each function of the domain that subscribes to the topic. */
export function publish(topic: string, payload?: Payload, how?: How): Promise<Published>;
