"""Serves workers as a function over HTTP (`mode: http`): `python -m nearpath.dataflow serve MODULE…`.

A request contains one worker's orders. Its own process runs them, and the response is lines of JSON: `{"alive": SECONDS}`
regularly, and finally `{"ended": EXIT CODE, "reason": TEXT}`. A disconnect of the caller ends its worker, and SIGTERM ends all.
Only the named modules are run. With a secret, callers must send it.
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
from ._child import KILL_GRACE, Child, WorkerCancelled

MAX_ORDERS_BYTES = 64 << 10
ALIVE_INTERVAL = 5.0  # seconds between two heartbeats
REQUEST_TIMEOUT = 30.0  # seconds for the arrival of a request
SPARE_CONNECTIONS = 64  # connections besides those of workers
STATUS_HEADERS = {401: ("WWW-Authenticate", "Bearer"), 429: ("Retry-After", "1"), 503: ("Retry-After", "1")}
HOST_MACHINE = "host.nearpath.internal"
SECRET_FOLDERS = (pathlib.Path("/var/openfaas/secrets"), pathlib.Path("/run/secrets"))


class Refused(Exception):
    """Rejects a request, with its HTTP status."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def check(orders: bytes, modules: Sequence[str]) -> dict[str, Any]:
    """Parses the orders. Raises Refused for another version or for code of another function."""
    try:
        fields: dict[str, Any] = json.loads(orders)
        version, module, name, *_ = fields["version"], fields["code"]["module"], fields["code"]["name"], fields["worker"], fields["job"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Refused(400, f"invalid orders: {error!r}") from None
    if version != 1:
        raise Refused(400, f"the orders have version {version!r}, expected 1: install the same release of nearpath on both sides")
    if module not in modules:
        known = ", ".join(modules)
        raise Refused(403, f"only {known} may be run here, not {module!r}: add it after `serve` in the function's command")
    if not isinstance(name, str) or not name.isidentifier():
        raise Refused(400, f"invalid function name {name!r}: expected an identifier")
    return fields


def with_local_rendezvous(fields: dict[str, Any], host_machine: str | None) -> bytes:
    """Replaces a loopback rendezvous address, because the instance has its own loopback device."""
    rendezvous = fields.get("rendezvous")
    place = urllib.parse.urlsplit(str(rendezvous["place"])) if isinstance(rendezvous, dict) and "place" in rendezvous else None
    if host_machine and place and place.scheme == "ws" and place.hostname in ("localhost", "127.0.0.1", "::1"):
        url = place._replace(netloc=f"{host_machine}:{place.port or 80}").geturl()
        fields = {**fields, "rendezvous": {**fields["rendezvous"], "place": url}}
    return json.dumps(fields).encode()


def host_machine() -> str | None:
    """Returns the name of the node's machine if `egress` declares it."""
    try:
        socket.gethostbyname(HOST_MACHINE)
    except OSError:
        return None
    return HOST_MACHINE


class Server(http.server.ThreadingHTTPServer):
    """Runs at most `workers` processes at a time. Further requests get status 429."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(
        self,
        modules: Sequence[str],
        port: int = 5000,
        workers: int = 64,
        secret: bytes | None = None,
        command: Sequence[str] | None = None,
        interval: float = ALIVE_INTERVAL,
    ) -> None:
        self.modules, self.secret, self.interval, self._max_workers = modules, secret, interval, workers
        self._command = command or (sys.executable, "-m", __name__, str(os.getpid()))
        self._running, self._changed, self.stop_event = 0, threading.Condition(), os.eventfd(0)
        super().__init__(("127.0.0.1", port), Handler)

    @contextlib.contextmanager
    def worker_slot(self) -> Iterator[None]:
        """Reserves a slot for one worker. Raises Refused if there is none."""
        with self._changed:
            if self.is_stopping():
                raise Refused(503, "the instance is stopping")
            if self._running >= self._max_workers:
                raise Refused(429, f"{self._max_workers} workers are running, the maximum (--workers)")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def start_child(self, orders: bytes) -> Child:
        try:
            return Child(self._command, orders)
        except OSError as error:
            raise Refused(503, f"no process can be started here: {error}") from None

    def workers(self) -> int:
        """Returns the number of running workers."""
        return self._running

    def is_stopping(self) -> bool:
        return bool(select.select([self.stop_event], [], [], 0)[0])

    def stop(self) -> None:
        """Stops all workers and refuses new ones. Returns after the callers have the results."""
        os.eventfd_write(self.stop_event, 1)
        with self._changed:
            self._changed.wait_for(lambda: not self._running, 3 * KILL_GRACE)
        self.shutdown()  # after all callers have their results

    def verify_request(self, request: Any, client_address: Any) -> bool:
        return threading.active_count() < self._max_workers + SPARE_CONNECTIONS

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # a disconnected caller is no error
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = REQUEST_TIMEOUT

    def do_GET(self) -> None:
        """Answers readiness and health checks."""
        self.answer(503 if self.server.is_stopping() else 200, "send orders by POST")

    def do_POST(self) -> None:
        try:
            orders = self.orders()
            self.check_caller()
            fields = check(orders, self.server.modules)
            with self.server.worker_slot():
                self.work(f"{fields['worker']} of {fields['job']}", self.server.start_child(with_local_rendezvous(fields, host_machine())))
        except Refused as refused:
            self.answer(refused.status, str(refused))

    def check_caller(self) -> None:
        secret = self.server.secret
        if secret is None:
            return
        authorization = self.headers.get("Authorization", "").encode("latin-1")
        if not hmac.compare_digest(authorization, b"Bearer " + secret):
            raise Refused(401, "missing or wrong secret: pass secret= to the place")

    def orders(self) -> bytes:
        """Reads the request's body."""
        length = self.headers.get("Content-Length", "")
        if self.request_version != "HTTP/1.1" or not (length.isascii() and length.isdigit()):
            raise Refused(411, "orders need HTTP/1.1 and a Content-Length")
        if int(length) > MAX_ORDERS_BYTES:
            self.rfile.read(min(int(length), 16 * MAX_ORDERS_BYTES))  # an unread body could lose the response
            raise Refused(413, f"the orders have {length} bytes, at most {MAX_ORDERS_BYTES} are allowed")
        orders = self.rfile.read(int(length))
        if len(orders) < int(length):
            raise Refused(400, "the orders are shorter than their Content-Length")
        return orders

    def work(self, worker: str, child: Child) -> None:
        """Streams the worker's progress until it ends or its caller disconnects."""
        why = ""
        try:
            self.begin_lines()
            for age in child.watch(self.connection, self.server.stop_event, self.server.interval):
                self.line({"alive": round(age, 1)})
        except (WorkerCancelled, OSError) as cancelled:
            why = f"{cancelled}; "
        finally:
            code, how = child.end()
        self.log_message("%s: %s%s", worker, why, how)
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.line({"ended": code, "reason": why + how})
            self.wfile.write(b"0\r\n\r\n")

    def begin_lines(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def line(self, fields: dict[str, Any]) -> None:
        text = json.dumps(fields).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))

    def answer(self, status: int, text: str) -> None:
        body = f"{text}\n".encode()
        self.close_connection = self.close_connection or self.command == "POST"  # its body may be unread
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if status in STATUS_HEADERS:
            self.send_header(*STATUS_HEADERS[status])
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        if int(code) >= 400:
            super().log_request(code, size)


def serve(modules: Sequence[str], port: int | None = None, workers: int = 64, secret: str | None = None) -> None:
    """Serves until SIGTERM or SIGINT. `port` defaults to $PORT, else 5000. `secret` names the secret that callers must send."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise SystemExit(f"there is no module {module!r} in {os.getcwd()} or on PYTHONPATH: add {module}.py to the function's folder")
    key = None if secret is None else read_secret(secret)
    port = int(os.environ.get("PORT") or 5000) if port is None else port
    with Server(modules, port, workers, key) as server:
        run(server)


def run(server: Server) -> None:
    """Runs the server until SIGTERM or SIGINT."""
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    stopping.wait()
    server.stop()
    serving.join()


def read_secret(name: str) -> bytes:
    """Reads a secret of the function."""
    folders = (*SECRET_FOLDERS, pathlib.Path(os.environ.get("TMPDIR", "/tmp"), "secrets"))
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            if value := (folder / name).read_bytes().strip():
                return value
    raise SystemExit(f"there is no secret {name!r}, or it is empty: list it in `secrets` of the function, and create it at the gateway")


def main(arguments: Sequence[str]) -> None:
    """Runs `python -m nearpath.dataflow serve …`."""
    parser = argparse.ArgumentParser("python -m nearpath.dataflow serve", description="Serves workers as a function.")
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="module whose jobs may be run")
    parser.add_argument("--port", type=int, help="port on 127.0.0.1; default $PORT, else 5000")
    parser.add_argument("--workers", type=int, default=64, help="maximum of workers at a time, more get 429; default %(default)s")
    parser.add_argument("--secret", metavar="NAME", help="secret of the function that callers must send")
    options = parser.parse_args(arguments)
    serve(options.modules, options.port, options.workers, options.secret)


def work(parent: int) -> NoReturn:
    """Runs a worker with orders from stdin. The process ends with the server's."""
    _native.die_with_parent(parent)
    sys.argv = ["python -m nearpath.dataflow"]
    runpy.run_module("nearpath.dataflow", run_name="__main__", alter_sys=True)
    raise SystemExit(0)


if __name__ == "__main__":
    work(int(sys.argv[1]))
