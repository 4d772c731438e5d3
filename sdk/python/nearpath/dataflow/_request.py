"""A request that is a worker: it lasts as long as the worker does."""

import contextlib
import http.client
import queue
import socket
import threading
import time

from .._reasons import RETRY_IS_SAFE
from ._callbacks import Callbacks, outcome
from ._gateway import Gateway, quoted
from ._places import Started

LINES = "application/x-ndjson"
LONGEST_PAUSE = 5.0
LARGEST = 64 << 10
STOPPED = "stopped"
CUT = "the instance has gone, or a gateway's time was up (nearpath.io/total-timeout; upstream_timeout of OpenFaaS's)"
ALIVE = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))


class Full(Exception):
    """Nothing was started for want of room, and the same may be sent once more; `after` so many seconds at the earliest."""

    def __init__(self, why: str, after: float = 0.0) -> None:
        super().__init__(why)
        self.after = after


class Request(Started):
    """One worker's."""

    def __init__(
        self,
        gateway: Gateway,
        function: str,
        orders: bytes,
        patience: float,
        silence: float | None,
        secret: bytes | None,
        callbacks: Callbacks | None,
    ) -> None:
        self._gateway, self._function, self._orders, self._patience, self._silence = gateway, function, orders, patience, silence
        self._secret, self._callbacks = secret, callbacks
        self._socket: socket.socket | None = None
        self._stopped, self._is_over = threading.Event(), threading.Event()
        self._called_back: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._how: str | None = None

    def ended(self) -> str | None:
        return self._how

    def wait(self, seconds: float) -> str | None:
        self._is_over.wait(seconds)
        return self._how

    def stop(self) -> None:
        """Hangs up, which ends a worker whose request is held. One that a queue has started ends with its job."""
        self._stopped.set()
        self._called_back.put(STOPPED)
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        """Until the worker has ended."""
        try:
            how = self._until_taken()
        except Exception as error:  # this is a thread's last word
            how = f"{type(error).__name__}: {error}"
        self._how = STOPPED if self._stopped.is_set() else how
        self._is_over.set()

    def _until_taken(self) -> str:
        """Again and again, while there is no room for it."""
        began, tries = time.monotonic(), 0
        while True:
            try:
                return self._once()
            except Full as full:
                tries += 1
                pause = wait(tries, full.after, self._patience - (time.monotonic() - began))
                if pause is None:
                    return f"no room for it in {self._patience:g} s and {tries} tries; the last: {full}"
                if self._stopped.wait(pause):
                    return STOPPED

    def _once(self) -> str:
        try:
            connection = self._gateway.connect()
        except OSError as error:
            raise Full(f"no gateway answers at {self._gateway.url}: {error}") from None
        with contextlib.closing(connection):
            self._socket = patient(connection.sock)  # `connection` lets go of it where the answer ends it
            if self._stopped.is_set():
                return STOPPED
            return self._queued(connection, self._callbacks) if self._callbacks else self._held(connection)

    def _held(self, connection: http.client.HTTPConnection) -> str:
        began = time.monotonic()
        answer = self._send(connection, "function", {"Accept": LINES})
        if answer.status != 200:
            refuse(answer)
        try:
            if answer.headers.get("Content-Type", "").startswith(LINES):
                return self._follow(answer)
            while answer.read(LARGEST):  # what a process printed that reads its orders by itself
                pass
            return ""
        except (OSError, http.client.HTTPException) as error:
            return f"cut after {time.monotonic() - began:.0f} s: {error or type(error).__name__}"

    def _follow(self, answer: http.client.HTTPResponse) -> str:
        assert self._socket is not None
        self._socket.settimeout(self._silence)
        while line := answer.readline(LARGEST):
            if (how := outcome(line)) is not None:
                return how
        raise ConnectionError(CUT)

    def _queued(self, connection: http.client.HTTPConnection, callbacks: Callbacks) -> str:
        with callbacks.expected(self._called_back.put) as url:
            answer = self._send(connection, "async-function", {"X-Callback-Url": url})
            if answer.status != 202:
                refuse(answer)
            answer.read(LARGEST)
            connection.close()
            return self._called_back.get()

    def _send(self, connection: http.client.HTTPConnection, route: str, fields: dict[str, str]) -> http.client.HTTPResponse:
        told: dict[str, str | bytes] = {"Content-Type": "application/json", **fields}
        if self._secret is not None:
            told["Authorization"] = b"Bearer " + self._secret
        connection.request("POST", f"{self._gateway.base}/{route}/{quoted(self._function)}", self._orders, told)
        return connection.getresponse()


def patient(connected: socket.socket) -> socket.socket:
    """A socket that waits as long as the other machine is there."""
    connected.settimeout(None)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ALIVE:
        connected.setsockopt(socket.IPPROTO_TCP, option, value)
    return connected


def wait(tries: int, asked: float, left: float) -> float | None:
    """Seconds until the next try, of which there have been so many; None when that is too late."""
    pause = max(min(LONGEST_PAUSE, 0.1 * 2 ** min(tries, 10)), asked)
    return pause if pause < left else None


def refuse(answer: http.client.HTTPResponse) -> None:
    """Raises what an answer says that is none of a worker's."""
    first, _, _ = answer.read(LARGEST).decode(errors="replace").strip().partition("\n")
    why = f"{answer.status} {answer.reason}: {first[:500]}"
    reason = answer.headers.get("X-Nearpath-Reason")
    if reason in RETRY_IS_SAFE or (reason is None and answer.status in (429, 503)):
        asked = answer.headers.get("Retry-After", "")
        raise Full(why, min(30.0, float(asked)) if asked.isascii() and asked.isdigit() else 0.0)
    raise ConnectionError(why)
