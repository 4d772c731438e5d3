// What a type checker reads of the SDK: tsc --strict.
import { call, callLater, fetch, gather, handedOn, NearpathError, publish, serve, type Request, type Response as Answer } from 'nearpath';

async function* pieces(): AsyncIterable<string> {
  yield 'EUR';
}

async function price(request: Request): Promise<Answer | [number, string]> {
  try {
    const rate = await call('currency', request.body, { deadline: 5000, signal: request.signal, headers: { 'x-tenant': '7' } });
    const why: string | null = rate.notNearer;
    console.log(rate.path, why, rate.fields.length);
    return rate;
  } catch (error) {
    if (error instanceof NearpathError) return [error.status ?? 502, `${error.function}: ${error.kind} ${error.text ?? ''}`];
    throw error;
  }
}

async function report(): Promise<number> {
  const answer: globalThis.Response = await fetch('nearpath://currency/EUR', { signal: AbortSignal.timeout(5000), headers: handedOn() });
  console.log(answer.headers.get('x-nearpath-path'));
  const streamed = await call('currency', pieces(), { stream: true });
  for await (const part of streamed.stream) console.log(part.length);
  const [first] = await gather([['currency', 'EUR']]);
  const { sent } = await publish('rates/read', first?.body);
  const id: string | null = await callLater('currency', 'EUR', { callback: new URL('http://gateway:8080/function/ledger') });
  return Number(await answer.text()) + sent + (id?.length ?? 0);
}

void report();
void serve(price);
