"""The transport adapter behind `nearpath.requests`."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from requests import PreparedRequest, Response, exceptions
from requests.adapters import BaseAdapter, HTTPAdapter
from requests.utils import default_headers, rewind_body
from urllib3 import Timeout
from urllib3.exceptions import NameResolutionError

from . import Error, call, handed_on
from ._paths import CALLER_NO_ENDPOINT, NO_ENDPOINT, NO_ROOM
from ._raw import raw_response
from ._retries import Retries
from ._urls import Target, target

_PIECE = 65536
_PATH = "X-Nearpath-Path"


def _gateway_adapter() -> HTTPAdapter:
    return HTTPAdapter(pool_connections=4, pool_maxsize=64)


class _Shared:
    """Connections to the gateway, of all sessions of the process. They hold no cookies and no credentials."""

    adapter = _gateway_adapter()

    @classmethod
    def forked(cls) -> None:
        cls.adapter = _gateway_adapter()  # two processes must not read one connection


os.register_at_fork(after_in_child=_Shared.forked)


class Unasked(dict[str, str]):
    """Proxies before the environment was asked for more: that takes longer than a call through memory."""

    def __init__(self, proxies: Mapping[str, str], ask: Callable[[], dict[str, Any]]) -> None:
        super().__init__(proxies)
        self.ask = ask


class Adapter(BaseAdapter):
    """Takes requests for functions, and gives all others to another adapter.

    Of functions are `http://gateway:8080/function/NAME` (any host named gateway, or the one that the environment names),
    `nearpath://NAME`, and `http://NAME` where the domain knows the function, or no host has that name. Over HTTP a call goes
    through `base`, or, when there is none, through connections that all sessions have in common.

    A timeout is that of `requests`, except that through memory it is for the whole call, unless with `stream=True`. A call that
    provably did not run is made again over HTTP.
    """

    def __init__(self, base: BaseAdapter | None = None) -> None:
        super().__init__()
        self._base, self._shares = base, base is None

    @property
    def base(self) -> BaseAdapter:
        """What takes everything else; made when it is needed."""
        if self._base is None:
            self._base = HTTPAdapter()
        return self._base

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # while it is unpickled there is no base
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
        over_http = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        wanted = target(request.url or "")
        if wanted is None:
            return self.base.send(request, **over_http)
        body = _Body(request)
        outcome = self._near(request, body, wanted, stream, _longest(timeout))
        if isinstance(outcome, Response):
            return outcome
        if isinstance(proxies, Unasked):
            over_http |= proxies.ask()
        if wanted.bare:
            try:
                return self.base.send(request, **over_http)
            except exceptions.ConnectionError as error:
                if not _is_nobody(error):
                    raise  # else nothing was sent
        return self._far(request, wanted, outcome, over_http)

    def _near(self, request: PreparedRequest, body: "_Body", wanted: Target, stream: bool, longest: float | None) -> Response | str:
        """The answer through memory, or what stood against it."""
        if "upgrade" in request.headers:
            return "upgrade"
        retries, fields = Retries(self._base, request), _fields(request.headers)
        while True:
            outcome = self._once(request, body.payload(), wanted, fields, stream, longest)
            if isinstance(outcome, Error) and outcome.retry_is_safe and body.again():
                return _obstacle(outcome)
            if isinstance(outcome, Error) and outcome.kind == "platform":
                outcome = self._told(request, outcome)
            if body.can_again() and retries.again(outcome):
                body.again()
                continue
            if isinstance(outcome, Response):
                return retries.note(outcome)
            raise _RAISED.get(outcome.kind, exceptions.ConnectionError)(outcome, request=request) from outcome

    def _once(
        self, request: PreparedRequest, payload: Any, wanted: Target, fields: dict[str, bytes], stream: bool, longest: float | None
    ) -> Response | Error:
        try:
            answer = call(
                wanted.name,
                payload,
                stream=stream or request.method == "HEAD",
                method=request.method,
                path=wanted.path,
                headers=fields,
                deadline=None if stream else longest,
                silence=longest if stream else None,
                near_only=True,
            )
        except Error as error:
            return error
        return self._made(request, raw_response(request, answer.status, [*answer.fields, (_PATH, "shm")], answer, stream))

    def _told(self, request: PreparedRequest, error: Error) -> Response:
        """What the platform answered is an answer."""
        fields = [("Content-Type", "text/plain"), ("X-Nearpath-Reason", error.reason or ""), (_PATH, "shm")]
        return self._made(request, raw_response(request, error.status or 502, fields, (error.text or "").encode(), False))

    def _made(self, request: PreparedRequest, raw: Any) -> Response:
        return HTTPAdapter.build_response(self, request, raw)  # type: ignore[arg-type]

    def _far(self, request: PreparedRequest, wanted: Target, obstacle: str, how: Mapping[str, Any]) -> Response:
        sent = request.copy()
        sent.url = wanted.url
        limit = None if how["stream"] else _longest(how["timeout"])
        for name, value in _handed_on(limit).items():
            sent.headers.setdefault(name, value)
        adapter = _Shared.adapter if self._shares else self.base
        response = adapter.send(sent, **how)
        response.request, response.url = request, request.url or wanted.url
        response.headers.setdefault(_PATH, f"http; not_nearer={obstacle}")
        return response


_RAISED: dict[str, type[exceptions.RequestException]] = {
    "timeout": exceptions.ReadTimeout,
    "cut": exceptions.ChunkedEncodingError,
    "head": exceptions.InvalidHeader,
    "name": exceptions.InvalidURL,
}


def _obstacle(error: Error) -> str:
    if not os.environ.get("NEARPATH_DISPATCH"):
        return CALLER_NO_ENDPOINT
    return NO_ROOM if error.path == "shm" else NO_ENDPOINT


def _handed_on(limit: float | None) -> dict[str, str]:
    """The trace, the nearer of both deadlines, and the question which way the call takes."""
    fields = dict(handed_on())
    if limit is not None:
        left = min(limit, _seconds(fields.get("x-timeout"), limit))
        fields["x-timeout"] = f"{max(1, int(1000 * left))}ms"
    return {**fields, _PATH: "?"}


def _seconds(timeout: str | None, otherwise: float) -> float:
    if timeout is None:
        return otherwise
    return float(timeout[:-2]) / 1000 if timeout.endswith("ms") else float(timeout.removesuffix("s"))


def _longest(timeout: Any) -> float | None:
    """How long an answer may be waited for: the second of two timeouts, or the only one. ValueError for what is none."""
    if timeout is None:
        return None
    if isinstance(timeout, tuple):
        if len(timeout) != 2:
            raise ValueError(f"Invalid timeout {timeout}. Pass a (connect, read) timeout tuple, or a single float for both.")
        timeout = Timeout(connect=timeout[0], read=timeout[1])
    begun = timeout.clone() if isinstance(timeout, Timeout) else Timeout(connect=timeout, read=timeout)
    begun.start_connect()  # of a total
    value = begun.read_timeout
    return float(value) if isinstance(value, (int, float)) else None


def _fields(headers: Mapping[Any, str | bytes]) -> dict[str, bytes]:
    """Text goes as http.client sends it. What `requests` offers by itself to save bytes on a wire is not offered where there is none."""
    offered = default_headers().get("Accept-Encoding")
    pairs = ((name.decode("ascii") if isinstance(name, bytes) else name, value) for name, value in headers.items())
    kept = ((name, value) for name, value in pairs if name.lower() != "accept-encoding" or value != offered)
    return {name: value.encode("latin-1") if isinstance(value, str) else value for name, value in kept}


class _Body:
    """What is sent with a request, perhaps once more."""

    def __init__(self, request: PreparedRequest) -> None:
        self._request, self._begun = request, False

    def payload(self) -> Any:
        """Bytes as they are; a file, or an iterable, as it is read."""
        body: Any = self._request.body
        return body if body is None or isinstance(body, (bytes, str, bytearray, memoryview)) else self._pieces(body)

    def _pieces(self, body: Any) -> Iterator[bytes]:
        self._begun = True
        for piece in iter(lambda: body.read(_PIECE), body.read(0)) if hasattr(body, "read") else body:
            yield piece.encode() if isinstance(piece, str) else piece

    def can_again(self) -> bool:
        """Whether it can be sent; of a file that was read, from where it began."""
        return not self._begun or isinstance(getattr(self._request, "_body_position", None), int)

    def again(self) -> bool:
        """Whether it can be sent; then it will be, from its beginning."""
        if not self.can_again():
            return False
        if self._begun:
            rewind_body(self._request)
        self._begun = False
        return True


def _is_nobody(error: exceptions.ConnectionError) -> bool:
    """Whether no host has that name."""
    cause = error.args[0] if error.args else None
    return isinstance(getattr(cause, "reason", cause), NameResolutionError)
