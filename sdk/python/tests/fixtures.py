"""Fixtures of SDK tests: a domain without a node, functions as processes, and a fake gateway."""

import contextlib
import http.server
import itertools
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest

# Background processes of a script ignore SIGINT, and children inherit that. They do not inherit a handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = pathlib.Path(__file__).parent
DEADLINE = 60
# Ports below those of outgoing connections (`ip_local_port_range`), which other processes could take before their use.
PORTS = range(16_384, 32_768)
_numbers = itertools.count(os.getpid() * 61)  # parallel test processes begin at distant ports


def free_port(count=1):
    """Returns the first of `count` successive ports that are free on loopback, for TCP and UDP, once per process."""
    while True:
        ports = [PORTS[next(_numbers) % len(PORTS)] for _ in range(count)]
        if ports[-1] - ports[0] == count - 1 and all(map(_is_free, ports)):
            return ports[0]


def _is_free(port):
    with contextlib.suppress(OSError), socket.socket() as tcp, socket.socket(type=socket.SOCK_DGRAM) as udp:
        tcp.bind(("127.0.0.1", port)), udp.bind(("127.0.0.1", port))
        return True
    return False


def domain_program():
    program = os.environ.get("NEARPATH_TEST_DOMAIN", "")
    if os.path.exists(program):
        return program
    skip("needs the program that NEARPATH_TEST_DOMAIN names: cargo build -p nearpath --example domain")


def skip(reason):
    """Skips the test and records the reason."""
    print(f"SKIP sdk/python: {reason}", file=sys.stderr)
    if log := os.environ.get("NEARPATH_SKIP_LOG"):
        with open(log, "a") as file:
            print(f"sdk/python: {reason}", file=file)
    raise unittest.SkipTest(reason)


def require_requests():
    try:
        import requests
    except ImportError:
        skip("needs the package requests: pip install requests")


def run_in_child(work):
    """Runs `work` in a forked child and returns its exit code: 0 after success."""
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE)  # ends the child at the deadline
        code = 1
        try:
            work()
            code = 0
        except BaseException as raised:
            print(repr(raised), file=sys.stderr)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class OpenFaasGateway:
    """A gateway without nearpath. With a folder it uses TLS."""

    def __init__(self, folder=None):
        command = [sys.executable, HERE.parent.parent / "standin" / "openfaas.py", *(["--tls", folder] if folder else [])]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()

    def stop(self):
        self.process.stdin.close()
        assert self.process.wait(DEADLINE) == 0
        self.process.stdout.close()


class Domain:
    """A real domain; `start` makes an instance of a function."""

    def __init__(self, *edges):
        self.folder = tempfile.TemporaryDirectory(prefix="np")
        self.processes = []
        self.command = [domain_program(), self.folder.name, *edges]
        self.start_domain()

    def start_domain(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def stop_domain(self):
        self.process.stdin.close()
        assert self.process.wait(DEADLINE) == 0
        self.process.stdout.close()

    def dispatch_socket(self, name):
        return os.path.join(self.folder.name, name)

    def start(self, name, **variables):
        port = free_port()
        environment = {**os.environ, "NEARPATH_DISPATCH": self.dispatch_socket(name), "PORT": str(port), **variables}
        process = subprocess.Popen([sys.executable, HERE / "domain_functions.py"], env=environment, stderr=subprocess.PIPE)
        self.processes.append(process)
        return process, port

    def stop(self):
        for process in self.processes:
            process.terminate()
        codes = [process.wait(DEADLINE) for process in self.processes]
        for process in self.processes:
            process.stderr.close()
        self.stop_domain()
        self.folder.cleanup()
        return codes


class GatewayCase:
    """Tests with a gateway in the environment, which `make_gateway` makes."""

    make_gateway = None

    @classmethod
    def setUpClass(cls):
        cls.gateway = cls.make_gateway()
        os.environ["NEARPATH_GATEWAY"] = cls.gateway.url

    @classmethod
    def tearDownClass(cls):
        cls.gateway.stop()
        del os.environ["NEARPATH_GATEWAY"]


class RecordingGateway:
    """Records requests, and responds by the function's name."""

    def __init__(self):
        recorded = self.requests = []

        clients = self.clients = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                clients.append(self.client_address)
                super().setup()

            def respond(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                recorded.append((self.command, self.path, dict(self.headers), body))
                name = self.path.split("/")[2].split("?")[0]
                if name == "dies":
                    return self.connection.shutdown(socket.SHUT_RDWR)
                if name == "slow":
                    return gateway.hold.wait(DEADLINE)
                refused = name == "refused"
                answer = b"no edge\n" if refused else b"answer to " + body
                self.send_response(403 if refused else 202 if "async" in self.path else 200)
                if refused:
                    self.send_header("X-Nearpath-Reason", "not_allowed")
                self.send_header("X-By", name)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = do_PUT = respond

            def log_message(self, *_):
                pass

        gateway, self.hold = self, threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def connections(self):
        return len(self.clients)

    def stop(self):
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
