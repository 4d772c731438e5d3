/** Functions that take calls and make them, over the nearest path there is: shared memory on one machine, HTTP elsewhere. */

export type Payload = string | ArrayBuffer | ArrayBufferView | null | undefined;
export type Headers = Record<string, string | string[]>;
export type Path = 'shm' | 'http';

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
  /** Milliseconds that the caller still waits; null: it did not say. */
  readonly timeLeft: number | null;
  /** Aborted when the caller no longer waits. */
  readonly signal: AbortSignal;
}

export interface Response {
  readonly status: number;
  readonly headers: Record<string, string>;
  readonly body: Buffer;
  /** The way that the call took. */
  readonly path: Path;
  readonly instance: number | null;
}

export interface Answer {
  status?: number;
  headers?: Headers;
  body?: Payload;
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
}

export type Returned = Answer | Payload | [number, Answer | Payload];

/** Serves until the process is told to stop (SIGTERM, SIGINT), and finishes calls that are open. */
export function serve(handler: (request: Request) => Returned | Promise<Returned>): Promise<void>;
/** Calls a function and waits for its answer, whatever status that has. */
export function call(name: string, payload?: Payload, how?: How): Promise<Response>;
/** Calls several functions at once; the answers come in the same order. */
export function gather(calls: [name: string, payload?: Payload][], how?: How): Promise<Response[]>;
/** Sends an event: nobody answers. */
export function notify(name: string, payload?: Payload, how?: How): Promise<void>;
