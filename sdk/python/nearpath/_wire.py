"""Connections to the gateway for who has only the standard library: kept, and used again."""

import functools
import http.client
import os
import select
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterable

IDLE = 30.0
"""Seconds after which a connection that nobody uses is not used again: sooner than the gateway would close it."""

_lock = threading.Lock()
_idle: dict[tuple[str, str], list[tuple[float, http.client.HTTPConnection]]] = {}


def _forked() -> None:
    """Two processes must not read one connection, nor wait for a thread that only one of them has."""
    global _lock
    _lock = threading.Lock()
    while _idle:
        for _, connection in _idle.popitem()[1]:
            connection.close()  # here only: the parent goes on with it


os.register_at_fork(after_in_child=_forked)


class Unreachable(OSError):
    """No connection could be made: nothing was sent."""


class Answer:
    """An answer and its connection, which is kept when all of it was read."""

    def __init__(self, place: tuple[str, str], connection: http.client.HTTPConnection, answer: http.client.HTTPResponse):
        self._place, self._connection, self._answer = place, connection, answer
        self.status, self.headers = answer.status, answer.headers

    def read(self, most: int) -> bytes:
        return self._answer.read(most)

    def read1(self, most: int) -> bytes:
        return self._answer.read1(most)

    def __enter__(self) -> "Answer":
        return self

    def __exit__(self, *_: object) -> None:
        if self._answer.isclosed() and not self._answer.will_close:
            with _lock:
                _idle.setdefault(self._place, []).append((time.monotonic(), self._connection))
        else:
            self._answer.close()
            self._connection.close()


def send(url: str, method: str, headers: dict[str, str], body: bytes | Iterable[bytes], timeout: float | None) -> Answer:
    """Sends a request and waits for the head of its answer. TimeoutError, OSError or HTTPException when none comes."""
    parts = urllib.parse.urlsplit(url)
    place = parts.scheme, parts.netloc
    connection = _take(place) or _connect(place, timeout)
    try:
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.request(method, target, body, headers)
        return Answer(place, connection, connection.getresponse())
    except BaseException:
        connection.close()
        raise


def _take(place: tuple[str, str]) -> http.client.HTTPConnection | None:
    """One that is idle, and that the other side has not closed."""
    while True:
        with _lock:
            idle = _idle.get(place)
            if not idle:
                return None
            since, connection = idle.pop()
        fresh = time.monotonic() - since < IDLE and connection.sock is not None
        if fresh and not _readable(connection):
            return connection
        connection.close()


def _readable(connection: http.client.HTTPConnection) -> bool:
    """Whether something came that nobody asked for: its end, mostly."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _connect(place: tuple[str, str], timeout: float | None) -> http.client.HTTPConnection:
    try:
        if place[0] == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(place[1], timeout=timeout, context=_trusting())
        else:
            connection = http.client.HTTPConnection(place[1], timeout=timeout)
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(f"{error}; SSL_CERT_FILE names a file with the authorities that are trusted") from error
    except OSError as error:
        raise Unreachable(str(error)) from error
    return connection


@functools.cache
def _trusting() -> ssl.SSLContext:
    """Whom the system and `SSL_CERT_FILE` trust, and whom `requests` is told to."""
    context = ssl.create_default_context()
    if besides := os.environ.get("REQUESTS_CA_BUNDLE"):
        context.load_verify_locations(besides)
    return context
