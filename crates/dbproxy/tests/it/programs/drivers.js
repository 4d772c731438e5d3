// Node's drivers: `node drivers.js pg|mysql HOST PORT PASSWORD`.
const [which, host, port, password] = process.argv.slice(2);

async function pg() {
  const { Client } = require("pg");
  for (let turn = 0; turn < 3; turn++) {
    const client = new Client({ host, port, user: "postgres", database: "postgres", password });
    await client.connect();
    for (let i = 0; i < 5; i++) {
      const { rows } = await client.query({ name: "add", text: "SELECT $1::int + 1 AS n, $2::text AS t", values: [i, "x" + turn] });
      console.log(rows[0].n, rows[0].t);
    }
    await client.query("BEGIN");
    await client.query("CREATE TEMPORARY TABLE t (v int) ON COMMIT DROP");
    await Promise.all([1, 2, 3].map((v) => client.query("INSERT INTO t VALUES ($1)", [v])));
    console.log((await client.query("SELECT sum(v)::int AS s FROM t")).rows[0].s);
    await client.query("COMMIT");
    await client.query("SELECT 1 / 0").catch((error) => console.log(error.code));
    await client.end();
  }
}

async function mysql() {
  const driver = require("mysql2/promise");
  for (let turn = 0; turn < 3; turn++) {
    const client = await driver.createConnection({ host, port, user: "fn", password, database: "shop" });
    for (let i = 0; i < 5; i++) {
      const [rows] = await client.execute("SELECT ? + 1 AS n, ? AS t", [i, "x" + turn]);
      console.log(Number(rows[0].n), rows[0].t);
    }
    await client.beginTransaction();
    await client.query("CREATE TEMPORARY TABLE t (v int)");
    await Promise.all([1, 2, 3].map((v) => client.query("INSERT INTO t VALUES (?)", [v])));
    console.log(Number((await client.query("SELECT SUM(v) AS s FROM t"))[0][0].s));
    await client.commit();
    await client.query("SELECT nothing FROM nowhere").catch((error) => console.log(error.code));
    await client.end();
  }
}

({ pg, mysql })[which]().catch((error) => {
  console.log(String(error));
  process.exit(1);
});
