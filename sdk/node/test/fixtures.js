'use strict';
// Fixtures of the tests: a domain without a node, functions as processes, a fake gateway.

const { spawn } = require('node:child_process');
const { once } = require('node:events');
const fs = require('node:fs');
const http = require('node:http');
const net = require('node:net');
const os = require('node:os');
const path = require('node:path');

// Below the ports that Linux gives to outgoing connections (`ip_local_port_range`, from 32768 on): one of
// those could belong to another process by the time a function binds it.
const PORTS = { first: 16384, count: 16384 };
let nextPort = process.pid * 61; // parallel test processes begin at distant ports

/** Returns a port that is free on loopback, once per process. */
async function freePort() {
  for (;;) {
    const port = PORTS.first + (nextPort++ % PORTS.count);
    const probe = net.createServer().listen(port, '127.0.0.1');
    try {
      await once(probe, 'listening');
      return port;
    } catch {
      // In use: the next one.
    } finally {
      probe.close();
    }
  }
}

/** Returns the reason to skip the tests of a domain, or false. */
function domainSkipReason() {
  const program = process.env.NEARPATH_TEST_DOMAIN ?? '';
  if (fs.existsSync(program)) return false;
  const reason = 'needs the program that NEARPATH_TEST_DOMAIN names: cargo build -p nearpath --example domain';
  if (process.env.NEARPATH_SKIP_LOG) fs.appendFileSync(process.env.NEARPATH_SKIP_LOG, `sdk/node: ${reason}\n`);
  return reason;
}

/** A domain whose functions are processes. */
class Domain {
  #program;
  #edges = [];
  #functions = [];
  folder = fs.mkdtempSync(path.join(os.tmpdir(), 'np'));

  /** Starts the domain's program; without edges with those of the last start. */
  async startNode(...edges) {
    if (edges.length > 0) this.#edges = edges;
    this.#program = spawn(process.env.NEARPATH_TEST_DOMAIN, [this.folder, ...this.#edges], { stdio: ['pipe', 'pipe', 'inherit'] });
    await once(this.#program.stdout, 'data');
    return this;
  }

  /** Returns the dispatch socket of a function. */
  socketPath(name) {
    return path.join(this.folder, name);
  }

  /** Starts a function with more environment variables. */
  async startFunction(name, variables) {
    const env = { ...process.env, NEARPATH_DISPATCH: this.socketPath(name), PORT: String(await freePort()), ...variables };
    const child = spawn(process.execPath, [path.join(__dirname, 'test_function.js')], { env, stdio: ['ignore', 'inherit', 'ignore'] });
    this.#functions.push(child);
    return child;
  }

  async stopNode() {
    this.#program.stdin.end();
    await once(this.#program, 'exit');
  }

  /** Stops everything and returns the exit codes of the functions. */
  async stop() {
    const ended = this.#functions.map((child) => (child.exitCode === null ? once(child, 'exit') : [child.exitCode]));
    this.#functions.forEach((child) => child.kill('SIGTERM'));
    const codes = (await Promise.all(ended)).map(([code]) => code);
    await this.stopNode();
    fs.rmSync(this.folder, { recursive: true });
    return codes;
  }
}

/** Starts a gateway that records its requests. Its response depends on the function's name; it reports the path of `x-report`. */
async function startFakeGateway() {
  const requests = [];
  const server = http.createServer(async (request, response) => {
    const body = Buffer.concat(await request.toArray());
    requests.push({ method: request.method, url: request.url, headers: request.headers, body: String(body) });
    const name = request.url.split('/')[2].split('?')[0];
    if (name === 'dies') return request.socket.destroy();
    if (name === 'slow') return undefined;
    const isRefused = name === 'refused';
    response.setHeader('x-by', name);
    if (request.headers['x-report']) response.setHeader('x-nearpath-path', request.headers['x-report']);
    if (isRefused) response.setHeader('x-nearpath-reason', 'not_allowed');
    response.statusCode = isRefused ? 403 : request.url.includes('async') ? 202 : 200;
    return response.end(isRefused ? 'no edge\n' : `response to ${body}`);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const stop = () => (server.closeAllConnections(), server.close());
  return { requests, url: `http://127.0.0.1:${server.address().port}`, stop };
}

/** Starts a gateway without support for nearpath; with a folder for its certificates it uses TLS. */
async function startOpenFaaS(folder) {
  const program = path.join(__dirname, '../../standin/openfaas.py');
  const child = spawn('python3', [program, ...(folder ? ['--tls', folder] : [])], { stdio: ['pipe', 'pipe', 'inherit'] });
  const [url] = await once(child.stdout, 'data');
  const stop = async () => {
    child.stdin.end();
    await once(child, 'exit');
  };
  return { url: String(url).trim(), stop };
}

module.exports = { Domain, domainSkipReason, freePort, startFakeGateway, startOpenFaaS };
