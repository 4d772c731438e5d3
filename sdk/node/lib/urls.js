'use strict';
// URLs of functions, and their URLs for calls over HTTP.
//
// http://gateway:8080/function/NAME/path    the gateway at the URL of the environment, or at that address
// http://gateway.any:8080/function/…        a gateway of that name, or at the URL of the environment
// nearpath://NAME/path                      the same for every gateway
// http://NAME/path                          a host of one label without a port, if no host has that name

const LABEL = '[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?';
const NAME = new RegExp(`^${LABEL}(?:\\.${LABEL})?$`);
const ROUTE = '/function/';
const DEFAULT_GATEWAY = 'http://gateway:8080';

/** Returns the gateway's URL, without a slash at the end. */
function gatewayUrl() {
  return configuredGateway() ?? DEFAULT_GATEWAY;
}

/** Returns the gateway's URL from the environment, or null. */
function configuredGateway() {
  const { NEARPATH_GATEWAY, gateway_url: named, gateway_hostname: host, OPENFAAS_URL, gateway: plain } = process.env;
  const url = NEARPATH_GATEWAY || named || (host && `http://${host}:8080`) || OPENFAAS_URL || plain;
  return url ? (url.includes('://') ? url : `http://${url}`).replace(/\/+$/, '') : null;
}

/**
 * Returns the function of a URL, or null: its name, path and URL at the gateway.
 * `isBare`: only the host's name denotes the function.
 */
function targetOf(address) {
  if (!URL.canParse(address)) return null; // the global fetch reports the error
  const url = new URL(address);
  const gateway = URL.canParse(gatewayUrl()) ? new URL(gatewayUrl()) : null;
  if (url.protocol === 'nearpath:') return targetOfHost(url, false);
  if (url.protocol !== 'http:' && url.protocol !== 'https:') return null;
  const base = basePath(url, gateway);
  if (base !== null) {
    const [name] = url.pathname.slice(base.length + ROUTE.length).split('/', 1);
    const path = url.pathname.slice(base.length + ROUTE.length + name.length) || '/';
    const configured = url.hostname === 'gateway' && configuredGateway();
    const atGateway = configured ? configured + ROUTE + name + (path === '/' ? '' : path) + url.search : url.href;
    return NAME.test(name) ? { name, path: path + url.search, gatewayUrl: atGateway, isBare: false } : null;
  }
  const hasPort = url.port !== '' || /:80$/.test(authorityOf(address));
  const isSingleLabel = url.protocol === 'http:' && !hasPort && url.username === '' && !url.hostname.includes('.');
  const isReserved = ['localhost', 'gateway', gateway?.hostname].includes(url.hostname);
  return isSingleLabel && !isReserved ? targetOfHost(url, true) : null;
}

/** Returns the authority as written: a URL drops the default port. */
function authorityOf(address) {
  return String(address).split('/', 3)[2] ?? '';
}

/** Returns the function that the host of a URL names. */
function targetOfHost(url, isBare) {
  const name = url.hostname;
  if (!NAME.test(name)) return null;
  const path = (url.pathname || '/') + url.search;
  return { name, path, gatewayUrl: gatewayUrl() + ROUTE + name + (path === '/' ? '' : path), isBare };
}

/** Returns the gateway's path before the route; null if the URL is no function of the gateway. */
function basePath(url, gateway) {
  if (/^gateway(\.|$)/.test(url.hostname) && url.pathname.startsWith(ROUTE)) return '';
  const base = gateway?.pathname.replace(/\/+$/, '');
  return gateway?.origin === url.origin && url.pathname.startsWith(base + ROUTE) ? base : null;
}

module.exports = { gatewayUrl, targetOf };
