"""`requests`, with calls of functions over the nearest path there is.

    from nearpath import requests          # was: import requests

    requests.get("http://gateway:8080/function/currency/EUR")

This module has all names of `requests`. Calls of functions (see `Adapter`) go through shared memory inside a domain, and over
pooled connections to the gateway elsewhere. The response's header `X-Nearpath-Path` names the path and the obstacle of a nearer
one. Other URLs are sent by `requests` itself. Needs the extra `requests`.
"""

import sys
from typing import Any

try:
    import requests as _requests
except ImportError as missing:
    raise ImportError("nearpath.requests needs the package requests: pip install requests") from missing

from requests import (
    ConnectionError as ConnectionError,
    ConnectTimeout as ConnectTimeout,
    HTTPError as HTTPError,
    JSONDecodeError as JSONDecodeError,
    PreparedRequest as PreparedRequest,
    ReadTimeout as ReadTimeout,
    Request as Request,
    RequestException as RequestException,
    Response as Response,
    Timeout as Timeout,
    TooManyRedirects as TooManyRedirects,
    URLRequired as URLRequired,
    adapters as adapters,
    auth as auth,
    codes as codes,
    cookies as cookies,
    exceptions as exceptions,
    utils as utils,
)

from . import _urls
from ._adapter import Adapter as Adapter
from ._adapter import LazyProxies


# Permits `from nearpath.requests.exceptions import Timeout`, as with `requests`.
for _module in ("adapters", "auth", "compat", "cookies", "exceptions", "hooks", "models", "status_codes", "structures", "utils"):
    sys.modules[f"{__name__}.{_module}"] = getattr(_requests, _module)


def __getattr__(name: str) -> Any:
    return getattr(_requests, name)


class Session(_requests.Session):
    """A `requests.Session` whose calls of functions take the nearest path.

    A mounted adapter still sends all requests over HTTP.
    """

    def __init__(self) -> None:
        super().__init__()
        for prefix in ("https://", "http://", "nearpath://"):
            super().mount(prefix, Adapter())

    def mount(self, prefix: str | bytes, adapter: adapters.BaseAdapter) -> None:
        super().mount(prefix, adapter if isinstance(adapter, Adapter) else Adapter(adapter))  # type: ignore[arg-type, unused-ignore]

    def merge_environment_settings(self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any) -> Any:
        """Reads proxies and certificates from the environment; for functions, only for calls over HTTP."""
        merge = super().merge_environment_settings
        if _urls.parse_target(str(url)) is None:
            return merge(url, proxies, stream, verify, cert)
        lazy_proxies = LazyProxies(proxies or {}, lambda: merge(url, proxies, stream, verify, cert))
        stream = self.stream if stream is None else stream
        return {"proxies": lazy_proxies, "stream": stream, "verify": verify, "cert": cert}

    def prepare_request(self, request: Request) -> PreparedRequest:
        url = str(request.url)
        if url.startswith("nearpath://"):
            target = _urls.parse_target(url)
            if target is None:
                raise exceptions.InvalidURL(f"{url!r} names no function: expected nearpath://NAME or nearpath://NAME.NAMESPACE in lower case")
            request.url = target.url  # requests adds no parameters to an unknown scheme
        return super().prepare_request(request)


def session() -> Session:
    """Returns a new session."""
    return Session()


def request(method: str, url: str, **kwargs: Any) -> Response:
    """Sends one request, see `requests.request`. Connections to the gateway are reused."""
    with Session() as session:
        return session.request(method, url, **kwargs)


def get(url: str, params: Any = None, **kwargs: Any) -> Response:
    """Sends a GET."""
    return request("get", url, params=params, **kwargs)


def options(url: str, **kwargs: Any) -> Response:
    """Sends an OPTIONS."""
    return request("options", url, **kwargs)


def head(url: str, **kwargs: Any) -> Response:
    """Sends a HEAD; redirects are not followed."""
    kwargs.setdefault("allow_redirects", False)
    return request("head", url, **kwargs)


def post(url: str, data: Any = None, json: Any = None, **kwargs: Any) -> Response:
    """Sends a POST."""
    return request("post", url, data=data, json=json, **kwargs)


def put(url: str, data: Any = None, **kwargs: Any) -> Response:
    """Sends a PUT."""
    return request("put", url, data=data, **kwargs)


def patch(url: str, data: Any = None, **kwargs: Any) -> Response:
    """Sends a PATCH."""
    return request("patch", url, data=data, **kwargs)


def delete(url: str, **kwargs: Any) -> Response:
    """Sends a DELETE."""
    return request("delete", url, **kwargs)
