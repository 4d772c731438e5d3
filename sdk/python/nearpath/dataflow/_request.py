"""Runs a worker as a request, which lasts as long as the worker."""

import contextlib
import http.client
import queue
import socket
import threading
import time

from .._reasons import RETRY_IS_SAFE
from ._callbacks import Callbacks, parse_end
from ._gateway import Gateway, quoted
from ._places import Started

NDJSON = "application/x-ndjson"
MAX_RETRY_DELAY = 5.0
MAX_RESPONSE_BYTES = 64 << 10
STOPPED = "stopped"
CUT_REASON = "the instance has ended, or a gateway timed out (nearpath.io/total-timeout, or OpenFaaS's upstream_timeout)"
KEEPALIVE_OPTIONS = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class NoCapacity(Exception):
    """Reports a start that was refused without capacity. A retry may follow after `retry_after` seconds."""

    def __init__(self, why: str, retry_after: float = 0.0) -> None:
        super().__init__(why)
        self.retry_after = retry_after


class Request(Started):
    """The request of one worker."""

    def __init__(
        self,
        gateway: Gateway,
        function: str,
        orders: bytes,
        retry_timeout: float,
        silence_timeout: float | None,
        secret: bytes | None,
        callbacks: Callbacks | None,
    ) -> None:
        self._gateway, self._function, self._orders, self._retry_timeout, self._silence_timeout = gateway, function, orders, retry_timeout, silence_timeout
        self._secret, self._callbacks = secret, callbacks
        self._socket: socket.socket | None = None
        self._stopped, self._has_ended = threading.Event(), threading.Event()
        self._callback_results: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._end: str | None = None

    def ended(self) -> str | None:
        return self._end

    def wait(self, seconds: float) -> str | None:
        self._has_ended.wait(seconds)
        return self._end

    def stop(self) -> None:
        """Disconnects, which ends the worker of a held request. A queued worker ends with its job."""
        self._stopped.set()
        self._callback_results.put(STOPPED)
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Runs the request until the worker has ended."""
        try:
            end = self._retry_until_accepted()
        except Exception as error:  # the thread must record an end
            end = f"{type(error).__name__}: {error}"
        self._end = STOPPED if self._stopped.is_set() else end
        self._has_ended.set()

    def _retry_until_accepted(self) -> str:
        """Retries while there is no capacity, until the timeout."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                return self._try_once()
            except NoCapacity as no_capacity:
                tries += 1
                pause = next_delay(tries, no_capacity.retry_after, self._retry_timeout - (time.monotonic() - began))
                if pause is None:
                    return f"no capacity within {self._retry_timeout:g} s and {tries} tries; the last: {no_capacity}"
                if self._stopped.wait(pause):
                    return STOPPED

    def _try_once(self) -> str:
        try:
            connection = self._gateway.connect()
        except OSError as error:
            raise NoCapacity(f"no gateway answers at {self._gateway.url}: {error}") from None
        with contextlib.closing(connection):
            self._socket = keep_alive(connection.sock)  # `connection` drops its socket at the response's end
            if self._stopped.is_set():
                return STOPPED
            return self._run_queued(connection, self._callbacks) if self._callbacks else self._run_held(connection)

    def _run_held(self, connection: http.client.HTTPConnection) -> str:
        began = time.monotonic()
        response = self._send(connection, "function", {"Accept": NDJSON})
        if response.status != 200:
            raise_refusal(response)
        try:
            if response.headers.get("Content-Type", "").startswith(NDJSON):
                return self._follow(response)
            while response.read(MAX_RESPONSE_BYTES):  # the printed output of a process per request
                pass
            return ""
        except (OSError, http.client.HTTPException) as error:
            return f"the connection broke after {time.monotonic() - began:.0f} s: {error or type(error).__name__}"

    def _follow(self, response: http.client.HTTPResponse) -> str:
        assert self._socket is not None
        self._socket.settimeout(self._silence_timeout)
        while line := response.readline(MAX_RESPONSE_BYTES):
            if (end := parse_end(line)) is not None:
                return end
        raise ConnectionError(CUT_REASON)

    def _run_queued(self, connection: http.client.HTTPConnection, callbacks: Callbacks) -> str:
        with callbacks.expected(self._callback_results.put) as url:
            response = self._send(connection, "async-function", {"X-Callback-Url": url})
            if response.status != 202:
                raise_refusal(response)
            response.read(MAX_RESPONSE_BYTES)
            connection.close()
            return self._callback_results.get()

    def _send(self, connection: http.client.HTTPConnection, route: str, fields: dict[str, str]) -> http.client.HTTPResponse:
        headers: dict[str, str | bytes] = {"Content-Type": "application/json", **fields}
        if self._secret is not None:
            headers["Authorization"] = b"Bearer " + self._secret
        connection.request("POST", f"{self._gateway.base}/{route}/{quoted(self._function)}", self._orders, headers)
        return connection.getresponse()


def keep_alive(connected: socket.socket) -> socket.socket:
    """Makes a socket wait without a timeout while its peer is reachable."""
    connected.settimeout(None)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE_OPTIONS:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    return connected


def next_delay(tries: int, retry_after: float, left: float) -> float | None:
    """Returns the seconds until the next try, or None after the timeout."""
    pause = max(min(MAX_RETRY_DELAY, 0.1 * 2 ** min(tries, 10)), retry_after)
    return pause if pause < left else None


def raise_refusal(response: http.client.HTTPResponse) -> None:
    """Raises the error of a response that no worker sent."""
    first, _, _ = response.read(MAX_RESPONSE_BYTES).decode(errors="replace").strip().partition("\n")
    why = f"{response.status} {response.reason}: {first[:500]}"
    reason = response.headers.get("X-Nearpath-Reason")
    if reason in RETRY_IS_SAFE or (reason is None and response.status in (429, 503)):
        retry_after = response.headers.get("Retry-After", "")
        raise NoCapacity(why, min(30.0, float(retry_after)) if retry_after.isascii() and retry_after.isdigit() else 0.0)
    raise ConnectionError(why)
