'use strict';
// What tests stand in: a domain without a node, functions as processes, a gateway that is a fake.

const { spawn } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');

async function freePort() {
  const probe = net.createServer().listen(0, '127.0.0.1');
  await once(probe, 'listening');
  const { port } = probe.address();
  probe.close();
  return port;
}

/** Why tests of a domain cannot run, or false. */
function missing() {
  const program = process.env.NEARPATH_TEST_DOMAIN ?? '';
  if (fs.existsSync(program)) return false;
  const reason = 'needs the program that NEARPATH_TEST_DOMAIN names: cargo build -p nearpath --example domain';
  if (process.env.NEARPATH_SKIP_LOG) fs.appendFileSync(process.env.NEARPATH_SKIP_LOG, `sdk/node: ${reason}\n`);
  return reason;
}

class Domain {
  #hub;
  #edges = [];
  #functions = [];
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'np'));

  async begin(...edges) {
    if (edges.length > 0) this.#edges = edges;
    this.#hub = spawn(process.env.NEARPATH_TEST_DOMAIN, [this.folder, ...this.#edges], { stdio: ['pipe', 'pipe', 'inherit'] });
    await once(this.#hub.stdout, 'data');
    return this;
  }

  door(name) {
    return path.join(this.folder, name);
  }

  async start(name, how) {
    const env = { ...process.env, NEARPATH_DISPATCH: this.door(name), PORT: String(await freePort()), ...how };
    const child = spawn(process.execPath, [path.join(__dirname, 'roles.js')], { env, stdio: ['ignore', 'inherit', 'ignore'] });
    this.#functions.push(child);
    return child;
  }

  async end() {
    this.#hub.stdin.end();
    await once(this.#hub, 'exit');
  }

  /** Exit codes of the functions. */
  async stop() {
    const ended = this.#functions.map((child) => (child.exitCode === null ? once(child, 'exit') : [child.exitCode]));
    this.#functions.forEach((child) => child.kill('SIGTERM'));
    const codes = (await Promise.all(ended)).map(([code]) => code);
    await this.end();
    fs.rmSync(this.folder, { recursive: true });
    return codes;
  }
}

/** A gateway that remembers its requests, and answers by the function's name; `x-report` is the path that it reports. */
async function gateway() {
  const asked = [];
  const server = http.createServer(async (request, response) => {
    const body = Buffer.concat(await request.toArray());
    asked.push({ method: request.method, url: request.url, headers: request.headers, body: String(body) });
    const name = request.url.split('/')[2].split('?')[0];
    if (name === 'dies') return request.socket.destroy();
    if (name === 'slow') return undefined;
    const refused = name === 'refused';
    response.setHeader('x-by', name);
    if (request.headers['x-report']) response.setHeader('x-nearpath-path', request.headers['x-report']);
    if (refused) response.setHeader('x-nearpath-reason', 'not_allowed');
    response.statusCode = refused ? 403 : request.url.includes('async') ? 202 : 200;
    return response.end(refused ? 'no edge\n' : `answer to ${body}`);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const stop = () => (server.closeAllConnections(), server.close());
  return { asked, url: `http://127.0.0.1:${server.address().port}`, stop };
}

/** A gateway that knows nothing of nearpath. With a folder it speaks TLS. */
async function openfaas(folder) {
  const program = path.join(__dirname, '../../standin/openfaas.py');
  const child = spawn('python3', [program, ...(folder ? ['--tls', folder] : [])], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [url] = await once(child.stdout, 'data');
  const stop = async () => {
    child.stdin.end();
    await once(child, 'exit');
  };
  return { url: String(url).trim(), stop };
}

module.exports = { Domain, openfaas, gateway, freePort, missing };
