// mysql2: prepared statements, transactions, streams, several statements at once, a pool.
const target = require("./target");
const mysql = require("mysql2");
const driver = require("mysql2/promise");

async function main() {
  for (let turn = 0; turn < 2; turn++) {
    const client = await driver.createConnection({ ...target, multipleStatements: true, timezone: "Z" });
    for (let i = 0; i < 5; i++) {
      const [rows] = await client.execute("SELECT ? + 1 AS n, ? AS t", [i, "é🙂"]);
      console.log(Number(rows[0].n), rows[0].t);
    }
    console.log((await client.query("SELECT 1 AS a; SELECT 2 AS b"))[0]);
    await client.beginTransaction();
    await client.query("CREATE TEMPORARY TABLE kept (id int)");
    await Promise.all([1, 2, 3].map((id) => client.query("INSERT INTO kept VALUES (?)", [id])));
    console.log(Number((await client.query("SELECT SUM(id) AS s FROM kept"))[0][0].s));
    await client.commit();
    await client.query("SELECT nothing FROM nowhere").catch((error) => console.log(error.code));
    await client.changeUser({ ...target });
    console.log((await client.query("SELECT @@autocommit AS a"))[0][0].a);
    await client.end();
  }
  const plain = mysql.createConnection(target);
  let sum = 0;
  for await (const row of plain.query("SELECT seq FROM seq_1_to_10000").stream()) sum += Number(row.seq);
  console.log(sum);
  plain.end();
  const pool = driver.createPool({ ...target, connectionLimit: 5 });
  const numbers = await Promise.all(Array.from({ length: 50 }, (_, n) => pool.query("SELECT ? AS n", [n])));
  console.log(numbers.reduce((all, [rows]) => all + Number(rows[0].n), 0));
  await pool.end();
}
main();
