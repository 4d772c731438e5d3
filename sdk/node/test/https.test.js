'use strict';
// A gateway at an https URL. Each caller is its own process: trusted certificates are read once.

const assert = require('node:assert/strict');
const { execFileSync, spawnSync } = require('node:child_process');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const { test } = require('node:test');

const { startOpenFaaS } = require('./fixtures');

const CALLER = `
const nearpath = require(process.argv[1]);
const print = async (outcome) => console.log(await outcome.catch((error) => [error.kind ?? error.cause?.code, error.retryIsSafe, error.message].join(' ')));
print(nearpath.call('currency').then(({ body }) => String(body)))
  .then(() => print(nearpath.fetch('nearpath://currency').then((response) => response.text())));
`;

const skipReason = spawnSync('openssl', ['version']).error ? 'needs openssl for the certificate: apt-get install openssl' : false;
if (skipReason && process.env.NEARPATH_SKIP_LOG) fs.appendFileSync(process.env.NEARPATH_SKIP_LOG, `sdk/node: ${skipReason}\n`);

test('calls to an https gateway verify its certificate', { skip: skipReason }, async (context) => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'np'));
  const faas = await startOpenFaaS(folder);
  context.after(async () => {
    await faas.stop();
    fs.rmSync(folder, { recursive: true });
  });
  const runCaller = (variables) => {
    const { NEARPATH_DISPATCH, ...env } = process.env;
    const options = { env: { ...env, NEARPATH_GATEWAY: faas.url, ...variables }, encoding: 'utf8' };
    return execFileSync(process.execPath, ['-e', CALLER, path.join(__dirname, '..')], options).trim().split('\n');
  };
  assert.deepEqual(runCaller({ NODE_EXTRA_CA_CERTS: path.join(folder, 'authority.pem') }), ['1.07', '1.07'], 'one variable for both');
  const [call, fetched] = runCaller({});
  assert.match(call, /^unsent true .*SSL_CERT_FILE/);
  assert.match(fetched, /^UNABLE_TO_VERIFY_LEAF_SIGNATURE/);
});
