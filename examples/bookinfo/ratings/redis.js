// Keeps ratings in a Redis server, in its protocol (RESP2) over a socket. A book is a hash: its fields are
// reviewers, its values stars.
"use strict";

const net = require("node:net");

const REPLY_TIMEOUT_MS = 40_000; // a server that sleeps is started first

function encode(command) {
  const fields = command.map((text) => `$${Buffer.byteLength(text)}\r\n${text}\r\n`);
  return `*${command.length}\r\n${fields.join("")}`;
}

// Returns the values of a reply, or undefined as long as it is incomplete. Values have no line breaks here, so
// a reply is a sequence of lines: `:1`, `-ERR …`, or `*2` and two lines for each value.
function decode(text) {
  const lines = text.split("\r\n");
  lines.pop(); // the incomplete last line
  if (lines.length === 0) return undefined;
  const [kind, rest] = [lines[0][0], lines[0].slice(1)];
  if (kind === "-") throw new Error(`Redis: ${rest}`);
  if (kind !== "*") return [rest];
  const values = lines.slice(1, 1 + 2 * Number(rest));
  return values.length < 2 * Number(rest) ? undefined : values.filter((_, at) => at % 2 === 1);
}

class RedisRatings {
  constructor(store) {
    [this.host, this.port] = store.split(":");
  }

  async read(book) {
    const values = await this.send(["HGETALL", `ratings:${book}`]);
    const pairs = values.flatMap((value, at) => (at % 2 === 0 ? [[value, Number(values[at + 1])]] : []));
    return Object.fromEntries(pairs);
  }

  async write(book, reviewer, stars) {
    await this.send(["HSET", `ratings:${book}`, reviewer, String(stars)]);
  }

  // Sends a command on a connection of its own, and returns the values of the reply.
  send(command) {
    return new Promise((resolve, reject) => {
      const socket = net.connect({ host: this.host, port: this.port });
      const fail = (why) => reject(new Error(`${this.host}: ${why}`));
      let text = "";
      socket.setTimeout(REPLY_TIMEOUT_MS, () => socket.destroy(new Error("no reply in time")));
      socket.on("error", (error) => fail(error.message));
      socket.on("close", () => fail("the connection ended without a reply")); // no effect after a reply
      socket.on("data", (part) => {
        text += part;
        try {
          const values = decode(text);
          if (values === undefined) return;
          resolve(values);
        } catch (error) {
          fail(error.message);
        }
        socket.destroy();
      });
      socket.write(encode(command));
    });
  }
}

module.exports = { RedisRatings };
