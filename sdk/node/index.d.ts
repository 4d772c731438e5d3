/** Functions that serve and make calls over the nearest path: shared memory on one machine, HTTP elsewhere. */

import type { Path } from './lib/paths';
export type { Path } from './lib/paths';

export type Payload = string | ArrayBuffer | ArrayBufferView | null | undefined;
/** A streamed payload: each yielded piece is sent at once. */
export type PayloadStream = AsyncIterable<Payload> | Iterator<Payload>;
export type Headers = Record<string, string | string[]>;

export interface Request {
  readonly method: string;
  /** The part of the URL after the function's name, with the query. */
  readonly path: string;
  /** Names are in lower case; a repeated name has its first value. */
  readonly headers: Record<string, string>;
  readonly body: Buffer;
  /** NAME.NAMESPACE of the calling function, according to the node; null: the gateway. */
  readonly caller: string | null;
  /** The path on which the call arrived. */
  readonly arrivalPath: Path;
  /** True for an event: its response is dropped. */
  readonly isEvent: boolean;
  /** The topic of a published event. */
  readonly topic: string | null;
  /** The streamed payload, with `serve(…, { stream: true })`; `body` is empty then. Else it yields the body, once. */
  readonly stream: AsyncIterableIterator<Buffer>;
  /** Milliseconds until the caller's deadline; null: no deadline. */
  readonly timeLeft: number | null;
  /** Aborted when the caller cancels the call or its deadline passes. */
  readonly signal: AbortSignal;
}

export interface Response {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: Buffer;
  /** Every received header field, as a pair. */
  readonly fields: [name: string, value: string][];
  /** The path of the call, as the platform reports it. */
  readonly path: Path;
  /** The obstacle to a nearer path, a name that `nearpath paths` explains; null: there is no nearer path. */
  readonly obstacle: string | null;
  readonly instance: number | null;
  /** The length of the whole body in bytes, according to its sender; null: unknown. */
  readonly length: number | null;
}

export interface HandlerResponse {
  status?: number;
  headers?: Headers;
  body?: Payload | PayloadStream;
}

export interface StreamingResponse extends Response {
  /** The streamed body; `body` is empty. Leaving a loop over it notifies the callee. */
  readonly stream: AsyncIterableIterator<Buffer>;
}

export interface PublishReport {
  /** The number of subscribed functions with an instance to which the event was sent. */
  readonly sent: number;
  /** The number of subscribed functions whose instance could not take the event. */
  readonly missed: number;
}

export interface CallOptions {
  method?: string;
  path?: string;
  headers?: Headers;
  /** Milliseconds; a call inside a handler also has the deadline of the handler's call. */
  deadline?: number;
  /** The call may run twice: it is made once more if the called instance died. */
  idempotent?: boolean;
  /** The call never uses HTTP: it fails with an error of kind `unsent` instead. */
  shmOnly?: boolean;
  /** Cancels the call: it rejects with the signal's reason, and the callee is notified. */
  signal?: AbortSignal;
  /** Resolves when the response begins, and streams its body. The deadline covers the whole response. */
  stream?: boolean;
}

export class NearpathError extends Error {
  readonly kind: 'name' | 'head' | 'unsent' | 'died' | 'timeout' | 'truncated' | 'too_large' | 'platform' | 'listen';
  readonly function: string;
  readonly path: Path | null;
  /** The call provably did not run. */
  readonly retryIsSafe: boolean;
  /** The status of the platform's response. */
  readonly status: number | null;
  readonly reason: string | null;
  /** The platform's message for users. */
  readonly text: string | null;
}

export type HandlerBody = HandlerResponse | StreamingResponse | Payload | PayloadStream;
/** A handler's result; a number before it is the status. */
export type HandlerResult = HandlerBody | [status: number, body: HandlerBody];

/** Serves until SIGTERM or SIGINT, then finishes the open calls. */
export function serve(
  handler: (request: Request) => HandlerResult | Promise<HandlerResult>,
  options?: {
    /** Calls the handler when a request begins. */
    stream?: boolean;
  },
): Promise<void>;
/** Calls a function and waits for its response, whatever its status. */
export function call(name: string, payload: Payload | PayloadStream, options: CallOptions & { stream: true }): Promise<StreamingResponse>;
export function call(name: string, payload?: Payload | PayloadStream, options?: CallOptions): Promise<Response>;
/** Calls several functions at once; the responses are in the same order. */
export function gather(calls: [name: string, payload?: Payload][], options?: CallOptions): Promise<Response[]>;
/**
 * `fetch`, with calls of functions over the nearest path. These are URLs of functions:
 *
 * - `http://gateway:8080/function/NAME`, with any host named gateway, or that of the environment
 * - `nearpath://NAME`
 * - `http://NAME`, if the domain has the function or no host has that name
 *
 * The response's header `X-Nearpath-Path` has the path of the call. Other URLs go to the global `fetch`.
 */
export const fetch: typeof globalThis.fetch;
/** Returns the header fields with which another client forwards the running handler's trace and deadline. */
export function propagatedFields(): { traceparent?: string; 'x-timeout'?: string };
/** Queues a call at the gateway, which later sends the response as a POST to `callback`. Returns the call's id, if the gateway gives one. */
export function callLater(
  name: string,
  payload?: Payload,
  options?: Pick<CallOptions, 'method' | 'path' | 'headers'> & { callback?: string | URL },
): Promise<string | null>;
/** Sends an event, which has no response. */
export function notify(name: string, payload?: Payload, options?: CallOptions): Promise<void>;
/** Sends an event to one instance of each function of the domain that subscribes to the topic. */
export function publish(topic: string, payload?: Payload, options?: CallOptions): Promise<PublishReport>;
