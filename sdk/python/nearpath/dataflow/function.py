"""A function whose requests are workers: `python -m nearpath.dataflow serve MODULE…`, spoken to over HTTP (`mode: http`).

A request brings one worker's orders. A process of its own works on them, and the answer is lines of JSON: `{"alive": SECONDS}` now
and then, and at last `{"ended": EXIT CODE, "why": TEXT}`. When the caller goes away the worker is ended; on SIGTERM all are. Only
the modules that were named are run, and with a secret only for who knows it.
"""

import argparse
import contextlib
import hmac
import http.server
import importlib.util
import json
import os
import pathlib
import runpy
import select
import signal
import socket
import sys
import threading
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from . import _native
from ._child import GRACE, Child, Unwanted

LONGEST_ORDERS = 64 << 10
BEAT = 5.0  # seconds between two signs of life
PATIENCE = 30.0  # seconds that a request may take to arrive
SPARE = 64  # connections beside those of workers
BESIDE = {401: ("WWW-Authenticate", "Bearer"), 429: ("Retry-After", "1"), 503: ("Retry-After", "1")}
MACHINE = "host.nearpath.internal"
SECRETS = (pathlib.Path("/var/openfaas/secrets"), pathlib.Path("/run/secrets"))


class Refused(Exception):
    """A request that gets no worker."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


def check(orders: bytes, modules: Sequence[str]) -> dict[str, Any]:
    """What the orders say. Refuses those of another version, and code that is not this function's."""
    try:
        told: dict[str, Any] = json.loads(orders)
        version, module, name, *_ = told["version"], told["code"]["module"], told["code"]["name"], told["worker"], told["job"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(400, f"the body is no orders of nearpath.dataflow: {error!r}") from None
    if version != 1:
        raise Refused(400, f"the orders have version {version!r}, and 1 is known here: have one release of nearpath on both sides")
    if module not in modules:
        known = ", ".join(modules)
        raise Refused(403, f"only {known} may be run here, not {module!r}: name it after `serve`, in the function's command")
    if not isinstance(name, str) or not name.isidentifier():
        raise Refused(400, f"{name!r} is no function's name")
    return told


def from_here(told: dict[str, Any], machine: str | None) -> bytes:
    """The orders for a worker in this instance, where the node's machine has that name: its loopback is another one here."""
    meeting = told.get("rendezvous")
    place = urllib.parse.urlsplit(str(meeting["place"])) if isinstance(meeting, dict) and "place" in meeting else None
    if machine and place and place.scheme == "ws" and place.hostname in ("localhost", "127.0.0.1", "::1"):
        there = place._replace(netloc=f"{machine}:{place.port or 80}").geturl()
        told = {**told, "rendezvous": {**told["rendezvous"], "place": there}}
    return json.dumps(told).encode()


def machine() -> str | None:
    """The name under which the node's machine is reached, where `egress` declares it."""
    try:
        socket.gethostbyname(MACHINE)
    except OSError:
        return None
    return MACHINE


class Server(http.server.ThreadingHTTPServer):
    """Has at most `workers` processes at a time; more get 429."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(
        self,
        modules: Sequence[str],
        port: int = 5000,
        workers: int = 64,
        secret: bytes | None = None,
        command: Sequence[str] | None = None,
        beat: float = BEAT,
    ) -> None:
        self.modules, self.secret, self.beat, self._most = modules, secret, beat, workers
        self._command = command or (sys.executable, "-m", __name__, str(os.getpid()))
        self._here, self._changed, self.stops = 0, threading.Condition(), os.eventfd(0)
        super().__init__(("127.0.0.1", port), Handler)

    @contextlib.contextmanager
    def room(self) -> Iterator[None]:
        """For one more worker."""
        with self._changed:
            if self.is_stopping():
                raise Refused(503, "the instance is stopping")
            if self._here >= self._most:
                raise Refused(429, f"{self._most} workers are here, which is the limit (--workers)")
            self._here += 1
        try:
            yield
        finally:
            with self._changed:
                self._here -= 1
                self._changed.notify_all()

    def begin(self, orders: bytes) -> Child:
        try:
            return Child(self._command, orders)
        except OSError as error:
            raise Refused(503, f"no process can be started here: {error}") from None

    def workers(self) -> int:
        """How many are here."""
        return self._here

    def is_stopping(self) -> bool:
        return bool(select.select([self.stops], [], [], 0)[0])

    def stop(self) -> None:
        """No worker comes any more, and all are ended. Returns when their callers know."""
        os.eventfd_write(self.stops, 1)
        with self._changed:
            self._changed.wait_for(lambda: not self._here, 3 * GRACE)
        self.shutdown()  # after the callers of workers know

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return threading.active_count() < self._most + SPARE

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # who went away is nothing to report
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Whether it is there: for readiness and health."""
        self.answer(503 if self.server.is_stopping() else 200, "workers come by POST")

    def do_POST(self) -> None:
        try:
            orders = self.orders()
            self.check_caller()
            told = check(orders, self.server.modules)
            with self.server.room():
                self.work(f"{told['worker']} of {told['job']}", self.server.begin(from_here(told, machine())))
        except Refused as refused:
            self.answer(refused.status, str(refused))

    def check_caller(self) -> None:
        secret = self.server.secret
        if secret is None:
            return
        given = self.headers.get("Authorization", "").encode("latin-1")
        if not hmac.compare_digest(given, b"Bearer " + secret):
            raise Refused(401, "this function works only for who knows its secret: give the place secret=")

    def orders(self) -> bytes:
        """The request's body."""
        length = self.headers.get("Content-Length", "")
        if self.request_version != "HTTP/1.1" or not (length.isascii() and length.isdigit()):
            raise Refused(411, "orders come over HTTP/1.1, with their length")
        if int(length) > LONGEST_ORDERS:
            self.rfile.read(min(int(length), 16 * LONGEST_ORDERS))  # or the answer might be lost with what was not read
            raise Refused(413, f"orders have at most {LONGEST_ORDERS} bytes, not {length}")
        orders = self.rfile.read(int(length))
        if len(orders) < int(length):
            raise Refused(400, "the orders are cut short")
        return orders

    def work(self, who: str, child: Child) -> None:
        """Tells the worker's life, until it has ended or nobody wants it any more."""
        why = ""
        try:
            self.begin_lines()
            for age in child.life(self.connection, self.server.stops, self.server.beat):
                self.line({"alive": round(age, 1)})
        except (Unwanted, OSError) as unwanted:
            why = f"{unwanted}; "
        finally:
            code, how = child.end()
        self.log_message("%s: %s%s", who, why, how)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.line({"ended": code, "why": why + how})
            self.wfile.write(b"0\r\n\r\n")

    def begin_lines(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def line(self, told: dict[str, Any]) -> None:
        text = json.dumps(told).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))

    def answer(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.close_connection = self.close_connection or self.command == "POST"  # its body may be unread
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status in BESIDE:
            self.send_header(*BESIDE[status])
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        if int(code) >= 400:
            super().log_request(code, size)


def serve(modules: Sequence[str], port: int | None = None, workers: int = 64, secret: str | None = None) -> None:
    """Serves until SIGTERM or SIGINT. `port`: default $PORT, else 5000. `secret` is a secret's name, whose value callers know."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise SystemExit(f"there is no module {module!r} in {os.getcwd()} nor on PYTHONPATH: put {module}.py beside the function")
    key = None if secret is None else read_secret(secret)
    port = int(os.environ.get("PORT") or 5000) if port is None else port
    with Server(modules, port, workers, key) as server:
        run(server)


def run(server: Server) -> None:
    """Until SIGTERM or SIGINT."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    stopping.wait()
    server.stop()
    serving.join()


def read_secret(name: str) -> bytes:
    """A secret of the function's."""
    folders = (*SECRETS, pathlib.Path(os.environ.get("TMPDIR", "/tmp"), "secrets"))
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            if value := (folder / name).read_bytes().strip():
                return value
    raise SystemExit(f"there is no secret {name!r}, or it is empty: list it at `secrets` of the function, and make it at the gateway")


def main(words: Sequence[str]) -> None:
    """`python -m nearpath.dataflow serve …`"""
    parser = argparse.ArgumentParser("python -m nearpath.dataflow serve", description="Serves workers as a function.")
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="a module whose jobs may be run here")
    parser.add_argument("--port", type=int, help="on 127.0.0.1; default $PORT, else 5000")
    parser.add_argument("--workers", type=int, default=64, help="workers at a time; more get 429; default %(default)s")
    parser.add_argument("--secret", metavar="NAME", help="a secret of the function's that callers must know")
    asked = parser.parse_args(words)
    serve(asked.modules, asked.port, asked.workers, asked.secret)


def work(parent: int) -> NoReturn:
    """What a child does: orders come on its stdin. It ends with the server, however that ends."""
    _native.die_with_parent(parent)
    sys.argv = ["python -m nearpath.dataflow"]
    runpy.run_module("nearpath.dataflow", run_name="__main__", alter_sys=True)
    raise SystemExit(0)


if __name__ == "__main__":
    work(int(sys.argv[1]))
