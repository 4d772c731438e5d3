// Uses of the SDK's types, checked with tsc --strict.
import { call, callLater, fetch, gather, propagatedFields, NearpathError, publish, serve, type Request, type Response as CallResponse } from 'nearpath';

async function* pieces(): AsyncIterable<string> {
  yield 'EUR';
}

async function price(request: Request): Promise<CallResponse | [number, string]> {
  try {
    const rate = await call('currency', request.body, { deadline: 5000, signal: request.signal, headers: { 'x-tenant': '7' } });
    const obstacle: string | null = rate.obstacle;
    console.log(rate.path, obstacle, rate.fields.length);
    return rate;
  } catch (error) {
    if (error instanceof NearpathError) return [error.status ?? 502, `${error.function}: ${error.kind} ${error.text ?? ''}`];
    throw error;
  }
}

async function report(): Promise<number> {
  const response: globalThis.Response = await fetch('nearpath://currency/EUR', { signal: AbortSignal.timeout(5000), headers: propagatedFields() });
  console.log(response.headers.get('x-nearpath-path'));
  const streamed = await call('currency', pieces(), { stream: true });
  for await (const part of streamed.stream) console.log(part.length);
  const [first] = await gather([['currency', 'EUR']]);
  const { sent } = await publish('rates/read', first?.body);
  const id: string | null = await callLater('currency', 'EUR', { callback: new URL('http://gateway:8080/function/ledger') });
  return Number(await response.text()) + sent + (id?.length ?? 0);
}

void report();
void serve(price);
