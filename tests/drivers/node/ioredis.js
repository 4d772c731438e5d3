// ioredis: automatic pipelines, transactions, scripts, subscriptions, streams.
const target = require("./target");
const ioredis = require("ioredis");
const Redis = ioredis.Redis ?? ioredis;

async function main() {
  const options = { host: target.host, port: target.port, password: target.password || undefined, db: 1 };
  const client = new Redis({ ...options, connectionName: "matrix", enableAutoPipelining: true });
  await client.flushdb();
  console.log(await Promise.all(Array.from({ length: 20 }, (_, n) => client.incrby("sum", n))));
  console.log((await client.multi().set("a", 1).get("a").lpush("a", 1).exec()).map(([error, value]) => error?.message ?? value));
  client.defineCommand("echo2", { numberOfKeys: 1, lua: "return {KEYS[1], ARGV[1]}" });
  console.log(await client.echo2("k", "é🙂"));
  await client.xadd("stream", "1-1", "field", "value");
  console.log(await client.xread("COUNT", 1, "STREAMS", "stream", "0"));
  const listener = new Redis(options);
  const heard = new Promise((resolve) => listener.on("message", (channel, text) => resolve(text)));
  await listener.subscribe("news");
  await client.publish("news", "hello");
  console.log(await heard);
  console.log(await client.blpop("empty", 0.1), await client.client("GETNAME"));
  await client.flushall();
  await listener.quit();
  await client.quit();
}
main();
