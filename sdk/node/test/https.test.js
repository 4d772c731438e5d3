'use strict';
// A gateway at an https URL: each caller is a process of its own, because what is trusted is read once.

const assert = require('node:assert/strict');
const { execFileSync, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { test } = require('node:test');

const { openfaas } = require('./surroundings');

const CALLER = `
const nearpath = require(process.argv[1]);
const show = async (told) => console.log(await told.catch((error) => [error.kind ?? error.cause?.code, error.retryIsSafe, error.message].join(' ')));
show(nearpath.call('currency').then(({ body }) => String(body)))
  .then(() => show(nearpath.fetch('nearpath://currency').then((answer) => answer.text())));
`;

const missing = spawnSync('openssl', ['version']).error ? 'needs openssl, which makes the certificate: apt-get install openssl' : false;
if (missing && process.env.NEARPATH_SKIP_LOG) fs.appendFileSync(process.env.NEARPATH_SKIP_LOG, `sdk/node: ${missing}\n`);

test('a gateway that speaks TLS', { skip: missing }, async (context) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'np'));
  const faas = await openfaas(folder);
  context.after(async () => {
    await faas.stop();
    fs.rmSync(folder, { recursive: true });
  });
  const told = (words) => {
    const { NEARPATH_DISPATCH, ...env } = process.env;
    const options = { env: { ...env, NEARPATH_GATEWAY: faas.url, ...words }, encoding: 'utf8' };
    return execFileSync(process.execPath, ['-e', CALLER, path.join(__dirname, '..')], options).trim().split('\n');
  };
  assert.deepEqual(told({ NODE_EXTRA_CA_CERTS: path.join(folder, 'authority.pem') }), ['1.07', '1.07'], 'one variable for both');
  const [call, fetched] = told({});
  assert.match(call, /^unsent true .*SSL_CERT_FILE/);
  assert.match(fetched, /^UNABLE_TO_VERIFY_LEAF_SIGNATURE/);
});
