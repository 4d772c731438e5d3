'use strict';
// Which URLs are calls of functions, and where they go over HTTP.
//
//   http://gateway:8080/function/NAME/path    the gateway: where the environment says it is, or at that address
//   http://gateway.any:8080/function/…        a gateway by that name, or at the address that the environment names
//   nearpath://NAME/path                      the same, whatever the gateway is called
//   http://NAME/path                          a host of one word without a port, when nothing else answers to that name

const LABEL = '[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?';
const NAME = new RegExp(`^${LABEL}(?:\\.${LABEL})?$`);
const ROUTE = '/function/';

/** Where calls go over HTTP, without a slash at the end. */
function gateway() {
  return said() ?? 'http://gateway:8080';
}

/** As the environment says. */
function said() {
  const { NEARPATH_GATEWAY, gateway_url: named, gateway_hostname: host, OPENFAAS_URL, gateway: plain } = process.env;
  const url = NEARPATH_GATEWAY || named || (host && `http://${host}:8080`) || OPENFAAS_URL || plain;
  return url ? (url.includes('://') ? url : `http://${url}`).replace(/\/+$/, '') : null;
}

/** The function that a URL means: its name, the path after it, where it goes over HTTP, and whether only the host's name says so. */
function target(address) {
  if (!URL.canParse(address)) return null; // whoever sends it says what is wrong
  const url = new URL(address);
  const known = URL.canParse(gateway()) ? new URL(gateway()) : null;
  if (url.protocol === 'nearpath:') return named(url.hostname, url, false);
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return null;
  const base = baseOf(url, known);
  if (base !== null) {
    const [name] = url.pathname.slice(base.length + ROUTE.length).split('/', 1);
    const path = url.pathname.slice(base.length + ROUTE.length + name.length) || '/';
    const elsewhere = url.hostname === 'gateway' && said();
    const far = elsewhere ? elsewhere + ROUTE + name + (path === '/' ? '' : path) + url.search : url.href;
    return NAME.test(name) ? { name, path: path + url.search, far, bare: false } : null;
  }
  const oneWord = url.protocol === 'http:' && url.port === '' && !/:80$/.test(authority(address)) && url.username === '' && !url.hostname.includes('.');
  const others = ['localhost', 'gateway', known?.hostname];
  return oneWord && !others.includes(url.hostname) ? named(url.hostname, url, true) : null;
}

/** As it was written: a URL forgets a port that is the usual one. */
function authority(address) {
  return String(address).split('/', 3)[2] ?? '';
}

function named(name, url, bare) {
  if (!NAME.test(name)) return null;
  const path = (url.pathname || '/') + url.search;
  return { name, path, far: gateway() + ROUTE + name + (path === '/' ? '' : path), bare };
}

/** What stands before the route at the gateway; null when it is no function of the gateway's. */
function baseOf(url, known) {
  if (/^gateway(\.|$)/.test(url.hostname) && url.pathname.startsWith(ROUTE)) return '';
  const base = known?.pathname.replace(/\/+$/, '');
  return known?.origin === url.origin && url.pathname.startsWith(base + ROUTE) ? base : null;
}

module.exports = { gateway, target };
