"""Which URLs are calls of functions, and where they go over HTTP.

    http://gateway:8080/function/NAME/path    the gateway: where the environment says it is, or at that address
    http://gateway.any:8080/function/…        a gateway by that name, or at the address that the environment names
    nearpath://NAME/path                      the same, whatever the gateway is called
    http://NAME/path                          a host of one word without a port, when nothing else answers to that name

Everything else is somebody else's.
"""

import os
import re
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,61}[a-z0-9])?)?")
_ROUTE = "/function/"
_PORTS = {"http": 80, "https": 443}


class Target(NamedTuple):
    """A function that a URL means."""

    name: str
    path: str
    """What follows the function's name, with the query."""
    url: str
    """Where the call goes over HTTP."""
    bare: bool
    """Only the name says so: it may be another host's."""


def gateway() -> str:
    """Where calls go over HTTP, without a slash at the end."""
    return _named() or "http://gateway:8080"


def _named() -> str | None:
    """As the environment says."""
    get = os.environ.get
    host = get("gateway_hostname")
    url = get("NEARPATH_GATEWAY") or get("gateway_url") or (host and f"http://{host}:8080") or get("OPENFAAS_URL") or get("gateway")
    if not url:
        return None
    return ("" if "://" in url else "http://") + url.rstrip("/")


def target(url: str) -> Target | None:
    """The function that a URL means, if it means one."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return None  # whoever sends it says what is wrong
    if parts.scheme == "nearpath":
        return _target(host, parts, bare=False)
    if parts.scheme not in _PORTS:
        return None
    if (base := _base(parts, host, port)) is not None:
        name, slash, rest = parts.path[len(base) + len(_ROUTE) :].partition("/")
        path = _path(slash + rest, parts.query)
        named = _named() if host == "gateway" else None
        far = f"{named}{_ROUTE}{name}{'' if path == '/' else path}" if named else url
        return Target(name, path, far, False) if NAME.fullmatch(name) else None
    one_word = parts.scheme == "http" and port is None and not parts.username and "." not in host
    others = ("localhost", "gateway", urlsplit(gateway()).hostname)
    return _target(host, parts, bare=True) if one_word and host not in others else None


def _target(name: str, parts: SplitResult, bare: bool) -> Target | None:
    if not NAME.fullmatch(name):
        return None
    path = _path(parts.path, parts.query)
    return Target(name, path, f"{gateway()}{_ROUTE}{name}{'' if path == '/' else path}", bare)


def _path(path: str, query: str) -> str:
    return (path or "/") + (f"?{query}" if query else "")


def _base(parts: SplitResult, host: str, port: int | None) -> str | None:
    """What stands before the route at the gateway; None when it is no function of the gateway's."""
    if (host == "gateway" or host.startswith("gateway.")) and parts.path.startswith(_ROUTE):
        return ""
    known = urlsplit(gateway())
    same = (known.scheme, known.hostname, known.port or _PORTS.get(known.scheme)) == (parts.scheme, host, port or _PORTS[parts.scheme])
    base = known.path.rstrip("/")
    return base if same and parts.path.startswith(base + _ROUTE) else None
