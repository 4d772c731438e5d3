// postgres.js: pipelined extended queries, types fetched from the catalogue, cursors, subscriptions to channels.
const target = require("./target");
const postgres = require("postgres");

async function main() {
  const sql = postgres({ ...target, username: target.user, max: 4, onnotice: () => {}, connection: { application_name: "matrix" } });
  console.log(await sql`SELECT ${7}::int AS n, ${"é🙂"}::text AS t, ${[1, 2, 3]}::int[] AS a, ${sql.json({ a: 1 })}::jsonb AS j`);
  console.log((await Promise.all(Array.from({ length: 100 }, (_, n) => sql`SELECT ${n}::int AS n`))).reduce((sum, rows) => sum + rows[0].n, 0));
  const total = await sql.begin(async (tx) => {
    await tx`CREATE TEMPORARY TABLE kept (id int, text text) ON COMMIT DROP`;
    await tx`INSERT INTO kept ${tx([{ id: 1, text: "a" }, { id: 2, text: "b" }])}`;
    await tx.savepoint((inner) => inner`INSERT INTO kept VALUES ('x'::text::int)`).catch((error) => console.log(error.code));
    return tx`SELECT sum(id)::int AS s FROM kept`;
  });
  console.log(total[0].s);
  let sum = 0;
  await sql`SELECT generate_series(1, 1000) AS n`.cursor(100, (rows) => rows.forEach((row) => (sum += row.n)));
  console.log(sum);
  const heard = new Promise((resolve) => sql.listen("news", resolve).then(() => sql.notify("news", "hello")));
  console.log(await heard);
  const slow = sql`SELECT pg_sleep(60)`;
  setTimeout(() => slow.cancel(), 200);
  await slow.catch((error) => console.log(error.code));
  await sql.end();
}
main();
