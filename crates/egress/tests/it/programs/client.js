// Node's ways to connect: `client.js HOST PORT`.
const http = require("node:http");
const net = require("node:net");

const [host, port] = [process.argv[2], Number(process.argv[3])];

const get = (path, options = {}) =>
  new Promise((done, failed) => {
    http
      .get({ host, port, path, ...options }, (answer) => {
        let text = "";
        answer.on("data", (more) => (text += more)).on("end", () => done(text.trim()));
      })
      .on("error", failed);
  });

const line = (text) =>
  new Promise((done, failed) => {
    const socket = net.connect({ host, port, noDelay: true, keepAlive: true }, () => socket.end(text + "\n"));
    let answer = "";
    socket.on("data", (more) => (answer += more)).on("end", () => done(answer.trim().replace("\n", " "))).on("error", failed);
  });

(async () => {
  for (let i = 0; i < 3; i++) console.log(await get(`/agentless/${i}`, { agent: false }));
  const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
  for (let i = 0; i < 4; i++) console.log(await get(`/kept/${i}`, { agent }));
  for (const answer of await Promise.all(Array.from({ length: 20 }, (_, i) => get(`/many/${i}`, { agent: false })))) console.log(answer);
  for (let i = 0; i < 3; i++) console.log(await line(`line ${i}`));
  console.log(await (await fetch(`http://${host}:${port}/fetch`)).text());
  agent.destroy();
})();
