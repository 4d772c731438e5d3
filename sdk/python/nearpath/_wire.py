"""Pools connections to the gateway, with the standard library."""

import functools
import http.client
import os
import select
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterable

IDLE_TIMEOUT = 30.0
"""Seconds for which an idle connection is reused, less than the gateway keeps it."""

_lock = threading.Lock()
_idle: dict[tuple[str, str], list[tuple[float, http.client.HTTPConnection]]] = {}


def _reset_after_fork() -> None:
    """Resets the pool in a forked child: two processes must not share a connection or a held lock."""
    global _lock
    _lock = threading.Lock()
    while _idle:
        for _, connection in _idle.popitem()[1]:
            connection.close()  # the parent's descriptor stays open


os.register_at_fork(after_in_child=_reset_after_fork)


class Unreachable(OSError):
    """Reports a failed connection. Nothing was sent."""


class PooledResponse:
    """A response and its connection, which is reused after a complete read."""

    def __init__(self, key: tuple[str, str], connection: http.client.HTTPConnection, response: http.client.HTTPResponse):
        self._key, self._connection, self._response = key, connection, response
        self.status, self.headers = response.status, response.headers

    def read(self, size: int) -> bytes:
        return self._response.read(size)

    def read1(self, size: int) -> bytes:
        return self._response.read1(size)

    def __enter__(self) -> "PooledResponse":
        return self

    def __exit__(self, *_: object) -> None:
        if self._response.isclosed() and not self._response.will_close:
            with _lock:
                _idle.setdefault(self._key, []).append((time.monotonic(), self._connection))
        else:
            self._response.close()
            self._connection.close()


def send(url: str, method: str, headers: dict[str, str], body: bytes | Iterable[bytes], timeout: float | None) -> PooledResponse:
    """Sends a request and waits for the response's head. Raises TimeoutError, OSError or HTTPException without one."""
    parts = urllib.parse.urlsplit(url)
    key = parts.scheme, parts.netloc
    connection = _take_idle(key) or _connect(key, timeout)
    try:
        if connection.sock is not None:
            connection.sock.settimeout(timeout)
        target = urllib.parse.urlunsplit(("", "", parts.path or "/", parts.query, ""))
        connection.request(method, target, body, headers)
        return PooledResponse(key, connection, connection.getresponse())
    except BaseException:
        connection.close()
        raise


def _take_idle(key: tuple[str, str]) -> http.client.HTTPConnection | None:
    """Returns an idle connection that the peer has not closed."""
    while True:
        with _lock:
            idle = _idle.get(key)
            if not idle:
                return None
            since, connection = idle.pop()
        fresh = time.monotonic() - since < IDLE_TIMEOUT and connection.sock is not None
        if fresh and not _readable(connection):
            return connection
        connection.close()


def _readable(connection: http.client.HTTPConnection) -> bool:
    """Returns whether an idle connection is readable, which mostly means closed."""
    poll = select.poll()
    poll.register(connection.sock, select.POLLIN)
    return bool(poll.poll(0))


def _connect(key: tuple[str, str], timeout: float | None) -> http.client.HTTPConnection:
    try:
        if key[0] == "https":
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(key[1], timeout=timeout, context=_tls_context())
        else:
            connection = http.client.HTTPConnection(key[1], timeout=timeout)
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        raise Unreachable(f"{error}; set SSL_CERT_FILE to a file with the trusted authorities") from error
    except OSError as error:
        raise Unreachable(str(error)) from error
    return connection


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Returns a context with the authorities of the system, SSL_CERT_FILE and REQUESTS_CA_BUNDLE."""
    context = ssl.create_default_context()
    if extra_authorities := os.environ.get("REQUESTS_CA_BUNDLE"):
        context.load_verify_locations(extra_authorities)
    return context
