"""Recognises URLs of functions and returns their URLs over HTTP.

    http://gateway:8080/function/NAME/path    the gateway of the environment, else that address
    http://gateway.any:8080/function/…        a gateway with that name, or with the address in the environment
    nearpath://NAME/path                      the same, without the gateway's name
    http://NAME/path                          a host name of one label without a port, if no other host has it

All other URLs belong to other servers.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,61}[a-z0-9])?)?")
_ROUTE = "/function/"
_PORTS = {"http": 80, "https": 443}


class Target(NamedTuple):
    """The function that a URL names."""

    name: str
    path: str
    """The path after the function's name, with the query."""
    url: str
    """The URL of the call over HTTP."""
    bare: bool
    """Only the host name matches, so another host may own it."""


def gateway() -> str:
    """Returns the URL for calls over HTTP, without a trailing slash."""
    return _configured_gateway() or "http://gateway:8080"


def _configured_gateway() -> str | None:
    """Returns the gateway URL of the environment."""
    get = os.environ.get
    host = get("gateway_hostname")
    url = get("NEARPATH_GATEWAY") or get("gateway_url") or (host and f"http://{host}:8080") or get("OPENFAAS_URL") or get("gateway")
    if not url:
        return None
    return ("" if "://" in url else "http://") + url.rstrip("/")


def parse_target(url: str) -> Target | None:
    """Returns the function that a URL names; None for other URLs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None  # the sending adapter reports the error
    if parts.scheme == "nearpath":
        return _target(host, parts, bare=False)
    if parts.scheme not in _PORTS:
        return None
    if (base := _base(parts, host, port)) is not None:
        name, slash, rest = parts.path[len(base) + len(_ROUTE) :].partition("/")
        path = _path(slash + rest, parts.query)
        configured = _configured_gateway() if host == "gateway" else None
        http_url = f"{configured}{_ROUTE}{name}{'' if path == '/' else path}" if configured else url
        return Target(name, path, http_url, False) if NAME.fullmatch(name) else None
    is_single_label = parts.scheme == "http" and port is None and not parts.username and "." not in host
    other_hosts = ("localhost", "gateway", urlsplit(gateway()).hostname)
    return _target(host, parts, bare=True) if is_single_label and host not in other_hosts else None


def _target(name: str, parts: SplitResult, bare: bool) -> Target | None:
    if not NAME.fullmatch(name):
        return None
    path = _path(parts.path, parts.query)
    return Target(name, path, f"{gateway()}{_ROUTE}{name}{'' if path == '/' else path}", bare)


def _path(path: str, query: str) -> str:
    return (path or "/") + (f"?{query}" if query else "")


def _base(parts: SplitResult, host: str, port: int | None) -> str | None:
    """Returns the path before the route at the gateway; None for other URLs."""
    if (host == "gateway" or host.startswith("gateway.")) and parts.path.startswith(_ROUTE):
        return ""
    gateway_url = urlsplit(gateway())
    is_gateway = (gateway_url.scheme, gateway_url.hostname, gateway_url.port or _PORTS.get(gateway_url.scheme)) == (parts.scheme, host, port or _PORTS[parts.scheme])
    base = gateway_url.path.rstrip("/")
    return base if is_gateway and parts.path.startswith(base + _ROUTE) else None
