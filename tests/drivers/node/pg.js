// node-postgres: simple and named statements, a pool, notifications, a cursor.
const target = require("./target");
const { Client, Pool } = require("pg");
const Cursor = require("pg-cursor");

async function statements(client) {
  for (let turn = 0; turn < 5; turn++) {
    const { rows } = await client.query({ name: "add", text: "SELECT $1::int + 1 AS n, $2::text AS t", values: [turn, "é🙂"] });
    console.log(rows[0].n, rows[0].t);
  }
  console.log((await client.query("SELECT 1 AS a; SELECT 2 AS b")).map((result) => result.rows[0]));
  await client.query("SELECT 1 / 0").catch((error) => console.log(error.code));
}

async function transactions(client) {
  await client.query("BEGIN");
  await client.query("CREATE TEMPORARY TABLE kept (id int) ON COMMIT DROP");
  await Promise.all([1, 2, 3].map((id) => client.query("INSERT INTO kept VALUES ($1)", [id])));
  console.log((await client.query("SELECT sum(id)::int AS s FROM kept")).rows[0].s);
  await client.query("ROLLBACK");
}

async function streams(client) {
  const cursor = client.query(new Cursor("SELECT generate_series(1, 1000) AS n"));
  let sum = 0;
  for (let rows; (rows = await cursor.read(100)).length; ) rows.forEach((row) => (sum += row.n));
  console.log(sum);
  const heard = new Promise((resolve) => client.once("notification", (event) => resolve(event.payload)));
  await client.query("LISTEN news");
  await client.query("NOTIFY news, 'hello'");
  console.log(await heard);
}

async function main() {
  const client = new Client({ ...target, application_name: "matrix" });
  await client.connect();
  for (const step of [statements, transactions, streams]) await step(client);
  await client.end();
  const pool = new Pool({ ...target, max: 5 });
  const numbers = await Promise.all(Array.from({ length: 100 }, (_, n) => pool.query("SELECT $1::int AS n", [n])));
  console.log(numbers.reduce((sum, { rows }) => sum + rows[0].n, 0));
  await pool.end();
}
main();
