"""Receives the results of queued calls from a gateway."""

import contextlib
import http.server
import json
import secrets
import threading
import urllib.parse
from collections.abc import Callable, Iterator

MAX_BODY_BYTES = 1 << 20
READ_TIMEOUT = 30.0


class Callbacks:
    """Serves callbacks at an address that the gateway reaches."""

    def __init__(self, url: str) -> None:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise ValueError(f"invalid callback address {url!r}: expected http://HOST:PORT")
        self._expected: dict[str, Callable[[str], None]] = {}
        try:
            self._server = http.server.ThreadingHTTPServer(("", parts.port or 0), self._handler())
        except OSError as error:
            raise ConnectionError(f"cannot listen for callbacks on port {parts.port}: {error}; choose another port") from error
        self._server.daemon_threads = True
        self._url = f"http://{parts.hostname}:{self._server.server_port}{parts.path.rstrip('/')}"
        threading.Thread(target=self._server.serve_forever, name="nearpath callbacks", daemon=True).start()

    @contextlib.contextmanager
    def expected(self, deliver: Callable[[str], None]) -> Iterator[str]:
        """Yields an unguessable URL. `deliver` gets the description of the call's end."""
        token = secrets.token_urlsafe(24)
        self._expected[token] = deliver
        try:
            yield f"{self._url}/{token}"
        finally:
            self._expected.pop(token, None)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _deliver(self, path: str, status: str, body: bytes) -> bool:
        deliver = self._expected.pop(path.rpartition("/")[2], None)
        if deliver is not None:
            deliver(describe_end(status, body))
        return deliver is not None

    def _handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        deliver = self._deliver

        class Handler(http.server.BaseHTTPRequestHandler):
            timeout = READ_TIMEOUT

            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "0")
                is_accepted = length.isascii() and length.isdigit() and int(length) <= MAX_BODY_BYTES
                body = self.rfile.read(int(length)) if is_accepted else b""
                delivered = deliver(self.path, self.headers.get("X-Function-Status", ""), body)
                self.send_response(204 if delivered else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def describe_end(status: str, body: bytes) -> str:
    """Describes a worker's end by the status and the body of the function's response."""
    *_, last = body.rstrip().rpartition(b"\n")
    end = parse_end(last)
    if end is not None:
        return end
    return "" if status in ("200", "202") else f"{status}: {last[:500].decode(errors='replace')}"


def parse_end(line: bytes) -> str | None:
    """Parses the end of a worker from a line; None for other lines."""
    try:
        message = json.loads(line)
        code = message.get("ended")
    except (ValueError, AttributeError):
        return None
    if code is None:
        return None
    return "" if code == 0 else str(message.get("reason") or f"exit code {code}")
