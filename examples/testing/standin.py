"""A test double of nearpath: starts an example's functions as processes and routes /function/NAME between them.

It records each call, so that tests can compare the call graph with the example's README. Functions and commands come from
stack.yml, read with patterns for the layout of these files, because the standard library has no YAML parser.
"""

import collections
import contextlib
import http.client
import http.server
import itertools
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

Function = collections.namedtuple("Function", "name folder command")
TIMEOUT_SECONDS = 60  # seconds for an expected event on a busy machine

Call = collections.namedtuple("Call", "caller_id function method path")


def functions(stack):
    """Returns the functions of a stack file that have a folder."""
    found = re.findall(r"^  ([a-z0-9-]+):\n(?:    .+\n)*?    handler: (.+)\n    fprocess: (.+)$", stack.read_text(), re.MULTILINE)
    return [Function(name, stack.parent / folder, command) for name, folder, command in found]


def edges(stack):
    """Returns the permitted edges of all chains: caller → set of callees."""
    found = re.findall(r"^      ([a-z0-9-]+): \[(.*)\]$", stack.read_text(), re.MULTILINE)
    return {caller: set(callees.split(", ")) for caller, callees in found}


# Below the ports that Linux gives to outgoing connections (`ip_local_port_range`, from 32768 on): one of
# those could belong to another process by the time a function binds it.
PORTS = range(16_384, 32_768)
_port_numbers = itertools.count(os.getpid() * 61)  # parallel test processes begin at distant ports


def free_port():
    """Returns a port that is free on loopback, once per process."""
    while True:
        port = PORTS[next(_port_numbers) % len(PORTS)]
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


class Server(http.server.ThreadingHTTPServer):
    """An HTTP server for tests, on a free loopback port."""

    request_queue_size = 128  # Python's default of 5 overflows under load
    daemon_threads = True

    def __init__(self, handler):
        super().__init__(("127.0.0.1", 0), handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request, client_address):
        """Ignores disconnected callers: functions cancel calls that they no longer need."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def stop(self):
        self.shutdown()
        self.server_close()


class StandIn:
    """A running application. `calls` lists calls in order. Functions in `broken` return 503 like a platform error."""

    def __init__(self, stack, environment=None):
        self.stack, self.environment = stack, environment or {}
        self.calls, self.called, self.broken, self.ports = [], threading.Condition(), set(), {}
        self.processes, self.logs = [], {}
        self.server = Server(type("Router", (Router,), {"application": self}))
        self.gateway = f"http://127.0.0.1:{self.server.server_port}"
        try:
            self.start_all()
            for name, port in self.ports.items():
                self.wait_listening(name, port)
        except BaseException:
            self.stop()
            raise

    def start_all(self):
        for function in functions(self.stack):
            self.start(function)

    def start(self, function):
        port = self.ports[function.name] = free_port()
        command = function.command.replace("python3", sys.executable).replace(":PORT", f":{port}").split()
        env = {"PATH": os.environ["PATH"], "PORT": str(port), "gateway_url": self.gateway, "OPENFAAS_NAME": function.name}
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # the deployed folder must stay unchanged
        log = self.logs[function.name] = tempfile.TemporaryFile()
        process = subprocess.Popen(command, cwd=function.folder, env={**env, **self.environment}, stderr=log)
        self.processes.append(process)

    def wait_listening(self, name, port):
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.01)
        raise RuntimeError(f"{name} does not listen after {TIMEOUT_SECONDS} s: {self.log(name)}")

    def log(self, name):
        """Returns a function's standard error."""
        log = self.logs[name]
        return os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait_logged(self, name, pattern):
        """Waits until a function has written this to standard error."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while not re.search(pattern, self.log(name)):
            if time.monotonic() > until:
                raise AssertionError(f"after {TIMEOUT_SECONDS} s {name} has not written {pattern!r} but {self.log(name)!r}")
            time.sleep(0.01)

    def stop(self):
        self.server.stop()
        for process in self.processes:
            process.kill()
            process.wait()
        for log in self.logs.values():
            log.close()

    def record(self, call):
        with self.called:
            self.calls.append(call)
            self.called.notify_all()

    def wait_called(self, caller_id, count):
        """Waits until a request has caused `count` calls, including itself and events."""
        with self.called:
            self.called.wait_for(lambda: len(self.calls_of(caller_id)) >= count, timeout=TIMEOUT_SECONDS)
            return self.calls_of(caller_id)

    def calls_of(self, caller_id):
        return [call for call in self.calls if call.caller_id == caller_id]

    def answer(self, name, method, path, headers, body):
        """Calls function `name`. Returns status, header fields and body."""
        if name in self.broken:
            return 503, [("X-OpenFaaS-Internal", "gateway")], b"no instance"
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            kept = [(k, v) for k, v in response.getheaders() if k.lower() in ("content-type", "set-cookie")]
            return response.status, kept, response.read()
        finally:
            connection.close()


class Router(http.server.BaseHTTPRequestHandler):
    """Routes /function/NAME/PATH. `application` is set by StandIn."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def route(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        target, mark, query = self.path.partition("?")
        _, _, name, *rest = target.split("/", 3)
        path = "/" + (rest[0] if rest else "") + mark + query
        self.application.record(Call(self.headers.get("X-Call-Id"), name, self.command, path))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        status, kept, answer = self.application.answer(name, self.command, path, headers, body)
        self.send_response(status)
        for key, value in [*kept, ("Content-Length", str(len(answer)))]:
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_DELETE = route

    def log_message(self, *_):
        pass
