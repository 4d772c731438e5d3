"""Where a gateway says that what it had queued has ended."""

import contextlib
import http.server
import json
import secrets
import threading
import urllib.parse
from collections.abc import Callable, Iterator

LARGEST = 1 << 20
PATIENCE = 30.0


class Callbacks:
    """A server at an address that the gateway reaches."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"{url!r} is no address to call back: http://HOST:PORT")
        self._expected: dict[str, Callable[[str], None]] = {}
        try:
            self._server = http.server.ThreadingHTTPServer(("", parts.port or 0), self._handler())
        except OSError as error:
            raise ConnectionError(f"cannot listen for callbacks on port {parts.port}: {error}; say another one") from error
        self._server.daemon_threads = True
        self._url = f"http://{parts.hostname}:{self._server.server_port}{parts.path.rstrip('/')}"
        threading.Thread(target=self._server.serve_forever, name="nearpath callbacks", daemon=True).start()

    @contextlib.contextmanager
    def expected(self, deliver: Callable[[str], None]) -> Iterator[str]:
        """An URL that nobody can guess; `deliver` gets how it ended."""
        token = secrets.token_urlsafe(24)
        self._expected[token] = deliver
        try:
            yield f"{self._url}/{token}"
        finally:
            self._expected.pop(token, None)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, path: str, status: str, body: bytes) -> bool:
        deliver = self._expected.pop(path.rpartition("/")[2], None)
        if deliver is not None:
            deliver(how(status, body))
        return deliver is not None

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        take = self._take

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = PATIENCE

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "0")
                known = length.isascii() and length.isdigit() and int(length) <= LARGEST
                body = self.rfile.read(int(length)) if known else b""
                taken = take(self.path, self.headers.get("X-Function-Status", ""), body)
                self.send_response(204 if taken else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def how(status: str, body: bytes) -> str:
    """How a worker has ended, by the status and the body of the function's answer."""
    *_, last = body.rstrip().rpartition(b"\n")
    ended = outcome(last)
    if ended is not None:
        return ended
    return "" if status in ("200", "202") else f"{status}: {last[:500].decode(errors='replace')}"


def outcome(line: bytes) -> str | None:
    """How a worker has ended, if the line says that it has."""
    try:
        told = json.loads(line)
        code = told.get("ended")
    except (ValueError, AttributeError):
        return None
    if code is None:
        return None
    return "" if code == 0 else str(told.get("why") or f"exit code {code}")
