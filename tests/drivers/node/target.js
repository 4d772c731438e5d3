// The server that a driver's program talks to: the same program runs beside it and in a function.
const { DB_HOST, DB_PORT, DB_USER, DB_PASSWORD, DB_NAME } = process.env;
module.exports = { host: DB_HOST, port: Number(DB_PORT), user: DB_USER, password: DB_PASSWORD, database: DB_NAME };
// A rejected promise ends the program with its reason.
process.on("unhandledRejection", (error) => {
  console.log(String(error));
  process.exit(1);
});
