// Serves ratings of books: GET /1 returns the stars of each reviewer, POST /1 stores those of one (a form with
// `reviewer` and `stars`). They are in the memory of this process, or in the Redis server that STORE names.
"use strict";

const http = require("node:http");
const { RedisRatings } = require("./redis.js");

const MAX_FORM_BYTES = 1024;
const BOOKS = ["1", "2"];

class MemoryRatings {
  books = { 1: { ann: 5, ben: 4 }, 2: { ann: 3, ben: 5 } };

  async read(book) {
    return this.books[book];
  }

  async write(book, reviewer, stars) {
    this.books[book][reviewer] = stars;
  }
}

const ratings = process.env.STORE ? new RedisRatings(process.env.STORE) : new MemoryRatings();

class RequestError extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function readForm(request) {
  let text = "";
  for await (const part of request) {
    text += part;
    if (text.length > MAX_FORM_BYTES) throw new RequestError(413, `a form has at most ${MAX_FORM_BYTES} bytes`);
  }
  return new URLSearchParams(text);
}

async function storeRating(book, request) {
  const form = await readForm(request);
  const [reviewer, stars] = [form.get("reviewer") ?? "", form.get("stars") ?? ""];
  if (!/^[a-z]{1,20}$/.test(reviewer)) throw new RequestError(400, `invalid reviewer "${reviewer}": expected a to z`);
  if (!/^[1-5]$/.test(stars)) throw new RequestError(400, `invalid stars "${stars}": expected 1 to 5`);
  await ratings.write(book, reviewer, Number(stars));
}

async function handle(request) {
  const book = request.url.split("?")[0].slice(1);
  if (!BOOKS.includes(book)) throw new RequestError(404, `no ratings of book "${book}"`);
  if (request.method === "POST") await storeRating(book, request);
  else if (request.method !== "GET") throw new RequestError(405, `no ${request.method} here: expected GET or POST`);
  return ratings.read(book);
}

async function respond(request, response) {
  try {
    const stars = await handle(request);
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify(stars) + "\n");
  } catch (error) {
    // Any other error is one of the store.
    response.statusCode = error.status ?? 503;
    response.setHeader("Content-Type", "text/plain");
    response.end(error.message + "\n");
  }
}

http.createServer(respond).listen(5000, "127.0.0.1");
