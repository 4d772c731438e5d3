'use strict';
// URLs of functions, and their URLs for calls over HTTP.
//
// http://gateway:8080/function/NAME/path    the gateway at the URL of the environment, or at that address
// http://gateway.any:8080/function/…        a gateway of that name, or at the URL of the environment
// nearpath://NAME/path                      the same for every gateway
// http://NAME/path                          a host of one word without a port, if no host has that name

const LABEL = '[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?';
const NAME = new RegExp(`^${LABEL}(?:\\.${LABEL})?$`);
const ROUTE = '/function/';

/** Returns the gateway's URL, without a slash at the end. */
function gateway() {
  return said() ?? 'http://gateway:8080';
}

/** Returns the gateway's URL from the environment, or null. */
function said() {
  const { NEARPATH_GATEWAY, gateway_url: named, gateway_hostname: host, OPENFAAS_URL, gateway: plain } = process.env;
  const url = NEARPATH_GATEWAY || named || (host && `http://${host}:8080`) || OPENFAAS_URL || plain;
  return url ? (url.includes('://') ? url : `http://${url}`).replace(/\/+$/, '') : null;
}

/** Returns the function of a URL: name, path, URL for HTTP, and in `bare` whether only the host's name denotes it; or null. */
function target(address) {
  if (!URL.canParse(address)) return null; // the global fetch reports the error
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

/** Returns the authority as written: a URL drops the default port. */
function authority(address) {
  return String(address).split('/', 3)[2] ?? '';
}

function named(name, url, bare) {
  if (!NAME.test(name)) return null;
  const path = (url.pathname || '/') + url.search;
  return { name, path, far: gateway() + ROUTE + name + (path === '/' ? '' : path), bare };
}

/** Returns the gateway's path before the route; null if the URL is no function of the gateway. */
function baseOf(url, known) {
  if (/^gateway(\.|$)/.test(url.hostname) && url.pathname.startsWith(ROUTE)) return '';
  const base = known?.pathname.replace(/\/+$/, '');
  return known?.origin === url.origin && url.pathname.startsWith(base + ROUTE) ? base : null;
}

module.exports = { gateway, target };
