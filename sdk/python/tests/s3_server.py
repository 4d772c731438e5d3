"""An object store for tests: a real server, and a proxy that makes requests fail."""

import contextlib
import http.client
import http.server
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
import urllib.parse

from fixtures import DEADLINE, free_port, skip

ROOT = pathlib.Path(__file__).resolve().parents[3]
UNAVAILABLE = 69


class Server:
    """Runs versitygw, which stores objects as files. It ends with this process."""

    def __init__(self, folder, address=None):
        command = [ROOT / "tools" / "s3", "serve", folder, address or f"127.0.0.1:{free_port()}"]
        self.folder, self.process = pathlib.Path(folder), subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        variables = dict(field.split("=", 1) for _ in range(5) for field in self.process.stdout.readline().split() if "=" in field)
        if not variables:
            self._report_failure()
        self.endpoint, self.pid = variables["S3_ENDPOINT"], int(variables["S3_PID"])
        self.keys = {name: variables[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")}

    def _report_failure(self):
        errors, code = self.process.stderr.read(), self.process.wait()
        self.close()
        if code == UNAVAILABLE:
            skip(errors.strip().splitlines()[0])
        raise AssertionError(errors)

    def kill(self):
        """Kills the server, as a power failure would."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def restart(self):
        """Returns a new server at the same address, with the same data."""
        return Server(self.folder, self.endpoint.removeprefix("http://"))

    def objects(self, bucket="nearpath"):
        place = self.folder / "data" / bucket
        return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and ".sgwtmp" not in path.parts)

    def close(self):
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()
        self.process.stderr.close()


class QuietServer(http.server.ThreadingHTTPServer):
    """Ignores disconnected clients."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FaultyProxy:
    """Forwards requests. `rule(method, path)` may return a fault, or a function that returns one.

    Faults are a status, "lose" (status 500 after the request), or "cut" (half of the response's body). `after(method, path)` runs
    after each request, before its response.
    """

    def __init__(self, endpoint):
        self.server, self.rule, self.requests = urllib.parse.urlsplit(endpoint), lambda method, path: None, []
        self.after = lambda method, path: None
        proxy, lock = self, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                with lock:
                    proxy.requests.append((self.command, self.path))
                    fault = proxy.rule(self.command, self.path)
                fault = fault() if callable(fault) else fault
                if isinstance(fault, int):
                    return self.answer(fault, XML % (CODES[fault].encode()))
                try:
                    status, headers, answer = proxy.forward(self.command, self.path, self.headers, body)
                except OSError:
                    self.close_connection = True
                    return None
                proxy.after(self.command, self.path)
                if fault == "lose":
                    return self.answer(500, XML % b"InternalError")
                return self.answer(status, answer, headers, fault)

            def answer(self, status, body, headers=(), fault=None):
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                if not headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if fault == "cut":
                    body, self.close_connection = body[: len(body) // 2], True
                if self.command != "HEAD":
                    with contextlib.suppress(ConnectionError):  # the client has disconnected
                        self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_request

            def log_message(self, *_):
                pass

        self._http = QuietServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def forward(self, method, path, headers, body):
        connection = http.client.HTTPConnection(self.server.hostname, self.server.port, timeout=DEADLINE)
        try:
            passed = {name: value for name, value in headers.items() if name.lower() not in ("expect", "connection")}
            connection.request(method, path, body, passed)
            answer = connection.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in ("connection", "transfer-encoding")]
            return answer.status, kept, answer.read()
        finally:
            connection.close()

    def fail_next(self, count, fault, method=None, part=""):
        """Applies a fault to the next `count` requests with this method and part of the path."""
        remaining = [count]

        def rule(actual, path):
            if method in (None, actual) and part in path and remaining[0]:
                remaining[0] -= 1
                return fault
            return None

        self.rule = rule

    def close(self):
        self._http.shutdown()
        self._http.server_close()


XML = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>made by the test</Message></Error>'
CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 409: "ConditionalRequestConflict", 501: "NotImplemented"}


class ObjectStoreCase(unittest.TestCase):
    """Tests with their own store, whose keys are in the environment."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        try:
            import boto3  # noqa: F401
        except ImportError:
            skip("needs the package boto3: pip install boto3")
        cls.place = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="np"))
        cls.server = Server(cls.place)
        cls.addClassCleanup(lambda: cls.server.close())
        cls.environment(AWS_EC2_METADATA_DISABLED="true", AWS_CONFIG_FILE="/nonexistent", AWS_SHARED_CREDENTIALS_FILE="/nonexistent")
        cls.environment(**cls.server.keys)

    @classmethod
    def environment(cls, **values):
        cls.enterClassContext(unittest.mock.patch.dict(os.environ, values))

    def url(self, endpoint=None, bucket="nearpath"):
        """Returns the URL of this test's own prefix."""
        return f"s3://{bucket}/{self.id()}?endpoint={endpoint or self.server.endpoint}"
