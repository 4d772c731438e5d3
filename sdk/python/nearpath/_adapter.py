"""The transport adapter behind `nearpath.requests`."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from requests import PreparedRequest, Response, exceptions
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import default_headers, rewind_body
from urllib3 import Timeout
from urllib3.exceptions import NameResolutionError

from . import Error, call, propagated_fields
from ._paths import CALLER_NO_ENDPOINT, NO_ENDPOINT, NO_ROOM
from ._raw import raw_response
from ._retries import Retries
from ._urls import Target, parse_target

_READ_BYTES = 65536
_PATH_HEADER = "X-Nearpath-Path"


def _gateway_adapter() -> HTTPAdapter:
    return HTTPAdapter(pool_connections=4, pool_maxsize=64)


class _GatewayConnections:
    """Shares gateway connections among the sessions of the process, without cookies or credentials."""

    adapter = _gateway_adapter()

    @classmethod
    def reset_after_fork(cls) -> None:
        cls.adapter = _gateway_adapter()  # two processes must not read one connection


os.register_at_fork(after_in_child=_GatewayConnections.reset_after_fork)


class LazyProxies(dict[str, str]):
    """Reads proxies from the environment only for calls over HTTP, because that takes longer than a call."""

    def __init__(self, proxies: Mapping[str, str], load: Callable[[], dict[str, Any]]) -> None:
        super().__init__(proxies)
        self.load = load


class Adapter(BaseAdapter):
    """Sends requests for functions over the nearest path, and all others with another adapter.

    URLs of functions are `http://gateway:8080/function/NAME` (any host named gateway, or the gateway of the environment),
    `nearpath://NAME`, and `http://NAME` if the domain has the function or no host has that name. Over HTTP a call uses `base`,
    by default the connections that all sessions share.

    A timeout works as in `requests`. Through shared memory it limits the whole call, except with `stream=True`. A call that
    provably did not run is repeated over HTTP.
    """

    def __init__(self, base: BaseAdapter | None = None) -> None:
        super().__init__()
        self._base, self._uses_shared = base, base is None

    @property
    def base(self) -> BaseAdapter:
        """Returns the adapter for all other requests, made on first use."""
        if self._base is None:
            self._base = HTTPAdapter()
        return self._base

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # during unpickling there is no base
        return getattr(self.base, name)

    def close(self) -> None:
        if self._base is not None:
            self._base.close()

    def send(
        self,
        request: PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: Any = None,
    ) -> Response:
        http_options = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        target = parse_target(request.url or "")
        if target is None:
            return self.base.send(request, **http_options)
        body = _Body(request)
        outcome = self._send_via_shm(request, body, target, stream, _read_timeout(timeout))
        if isinstance(outcome, Response):
            return outcome
        if isinstance(proxies, LazyProxies):
            http_options |= proxies.load()
        if target.bare:
            try:
                return self.base.send(request, **http_options)
            except exceptions.ConnectionError as error:
                if not _is_unknown_host(error):
                    raise  # for an unknown host nothing was sent
        return self._send_via_http(request, target, outcome, http_options)

    def _send_via_shm(self, request: PreparedRequest, body: "_Body", target: Target, stream: bool, timeout: float | None) -> Response | str:
        """Returns the response through shared memory, or the obstacle of that path."""
        if "upgrade" in request.headers:
            return "upgrade"
        retries, fields = Retries(self._base, request), _fields(request.headers)
        while True:
            outcome = self._call_once(request, body.payload(), target, fields, stream, timeout)
            if isinstance(outcome, Error) and outcome.retry_is_safe and body.rewind():
                return _obstacle(outcome)
            if isinstance(outcome, Error) and outcome.kind == "platform":
                outcome = self._platform_response(request, outcome)
            if body.can_rewind() and retries.should_retry(outcome):
                body.rewind()
                continue
            if isinstance(outcome, Response):
                return retries.record(outcome)
            raise _EXCEPTIONS.get(outcome.kind, exceptions.ConnectionError)(outcome, request=request) from outcome

    def _call_once(
        self, request: PreparedRequest, payload: Any, target: Target, fields: dict[str, bytes], stream: bool, timeout: float | None
    ) -> Response | Error:
        try:
            answer = call(
                target.name,
                payload,
                stream=stream or request.method == "HEAD",
                method=request.method,
                path=target.path,
                headers=fields,
                deadline=None if stream else timeout,
                idle_timeout=timeout if stream else None,
                shm_only=True,
            )
        except Error as error:
            return error
        return self._build(request, raw_response(request, answer.status, [*answer.fields, (_PATH_HEADER, "shm")], answer, stream))

    def _platform_response(self, request: PreparedRequest, error: Error) -> Response:
        """Builds a response from a platform error."""
        fields = [("Content-Type", "text/plain"), ("X-Nearpath-Reason", error.reason or ""), (_PATH_HEADER, "shm")]
        return self._build(request, raw_response(request, error.status or 502, fields, (error.text or "").encode(), False))

    def _build(self, request: PreparedRequest, raw: Any) -> Response:
        return HTTPAdapter.build_response(self, request, raw)  # type: ignore[arg-type]

    def _send_via_http(self, request: PreparedRequest, target: Target, obstacle: str, options: Mapping[str, Any]) -> Response:
        sent = request.copy()
        sent.url = target.url
        limit = None if options["stream"] else _read_timeout(options["timeout"])
        for name, value in _context_headers(limit).items():
            sent.headers.setdefault(name, value)
        adapter = _GatewayConnections.adapter if self._uses_shared else self.base
        response = adapter.send(sent, **options)
        response.request, response.url = request, request.url or target.url
        response.headers.setdefault(_PATH_HEADER, f"http; obstacle={obstacle}")
        return response


_EXCEPTIONS: dict[str, type[exceptions.RequestException]] = {
    "timeout": exceptions.ReadTimeout,
    "truncated": exceptions.ChunkedEncodingError,
    "head": exceptions.InvalidHeader,
    "name": exceptions.InvalidURL,
}


def _obstacle(error: Error) -> str:
    if not os.environ.get("NEARPATH_DISPATCH"):
        return CALLER_NO_ENDPOINT
    return NO_ROOM if error.path == "shm" else NO_ENDPOINT


def _context_headers(limit: float | None) -> dict[str, str]:
    """Returns fields with the trace, the earlier of both deadlines, and the request for the call's path."""
    fields = dict(propagated_fields())
    if limit is not None:
        remaining = min(limit, _parse_seconds(fields.get("x-timeout"), limit))
        fields["x-timeout"] = f"{max(1, int(1000 * remaining))}ms"
    return {**fields, _PATH_HEADER: "?"}


def _parse_seconds(timeout: str | None, default: float) -> float:
    if timeout is None:
        return default
    return float(timeout[:-2]) / 1000 if timeout.endswith("ms") else float(timeout.removesuffix("s"))


def _read_timeout(timeout: Any) -> float | None:
    """Returns the read timeout in s. Raises ValueError for an invalid value."""
    if timeout is None:
        return None
    if isinstance(timeout, tuple):
        if len(timeout) != 2:
            raise ValueError(f"Invalid timeout {timeout}. Pass a (connect, read) timeout tuple, or a single float for both.")
        timeout = Timeout(connect=timeout[0], read=timeout[1])
    timeouts = timeout.clone() if isinstance(timeout, Timeout) else Timeout(connect=timeout, read=timeout)
    timeouts.start_connect()  # starts the clock of a total timeout
    value = timeouts.read_timeout
    return float(value) if isinstance(value, (int, float)) else None


def _fields(headers: Mapping[Any, str | bytes]) -> dict[str, bytes]:
    """Encodes header values like http.client. Drops the default Accept-Encoding, because shared memory needs no compression."""
    default = default_headers().get("Accept-Encoding")
    pairs = ((name.decode("ascii") if isinstance(name, bytes) else name, value) for name, value in headers.items())
    sent = ((name, value) for name, value in pairs if name.lower() != "accept-encoding" or value != default)
    return {name: value.encode("latin-1") if isinstance(value, str) else value for name, value in sent}


class _Body:
    """A request body that can be sent again."""

    def __init__(self, request: PreparedRequest) -> None:
        self._request, self._is_started = request, False

    def payload(self) -> Any:
        """Returns bytes unchanged, and iterates over files and iterables."""
        body: Any = self._request.body
        return body if body is None or isinstance(body, (bytes, str, bytearray, memoryview)) else self._iterate(body)

    def _iterate(self, body: Any) -> Iterator[bytes]:
        self._is_started = True
        for piece in iter(lambda: body.read(_READ_BYTES), body.read(0)) if hasattr(body, "read") else body:
            yield piece.encode() if isinstance(piece, str) else piece

    def can_rewind(self) -> bool:
        """Returns whether the body can be sent from its beginning."""
        return not self._is_started or isinstance(getattr(self._request, "_body_position", None), int)

    def rewind(self) -> bool:
        """Rewinds the body if possible. Returns whether it did."""
        if not self.can_rewind():
            return False
        if self._is_started:
            rewind_body(self._request)
        self._is_started = False
        return True


def _is_unknown_host(error: exceptions.ConnectionError) -> bool:
    """Returns whether no host has that name."""
    cause = error.args[0] if error.args else None
    return isinstance(getattr(cause, "reason", cause), NameResolutionError)
