"""An object store for tests: a real server, and somebody between who lets requests fail."""

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
    """versitygw, whose objects are files. It ends with this process."""

    def __init__(self, folder, address=None):
        words = [ROOT / "tools" / "s3", "serve", folder, address or f"127.0.0.1:{free_port()}"]
        self.folder, self.process = pathlib.Path(folder), subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        said = dict(word.split("=", 1) for _ in range(5) for word in self.process.stdout.readline().split() if "=" in word)
        if not said:
            self._give_up()
        self.endpoint, self.pid = said["S3_ENDPOINT"], int(said["S3_PID"])
        self.keys = {name: said[name] for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")}

    def _give_up(self):
        why, code = self.process.stderr.read(), self.process.wait()
        self.close()
        if code == UNAVAILABLE:
            skip(why.strip().splitlines()[0])
        raise AssertionError(why)

    def kill(self):
        """As a machine that loses its power would."""
        os.kill(self.pid, signal.SIGKILL)
        self.close()

    def again(self):
        """At the same address, with what it had."""
        return Server(self.folder, self.endpoint.removeprefix("http://"))

    def objects(self, bucket="nearpath"):
        place = self.folder / "data" / bucket
        return sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file() and ".sgwtmp" not in path.parts)

    def close(self):
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()
        self.process.stderr.close()


class Quiet(http.server.ThreadingHTTPServer):
    """Clients that are killed are no news."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class FaultyProxy:
    """Passes requests on. `rule(method, path)` may say otherwise: a status to answer with, "lose" (it is done, and the answer is
    500), "cut" (half of the answer's body), or a function that gives one of
    these. `after(method, path)` is called when the server has done what it was asked, before the answer goes out."""

    def __init__(self, endpoint):
        self.server, self.rule, self.asked = urllib.parse.urlsplit(endpoint), lambda method, path: None, []
        self.after = lambda method, path: None
        between, lock = self, threading.Lock()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def take(self):
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                with lock:
                    between.asked.append((self.command, self.path))
                    said = between.rule(self.command, self.path)
                said = said() if callable(said) else said
                if isinstance(said, int):
                    return self.answer(said, XML % (CODES[said].encode()))
                try:
                    status, headers, answer = between.ask(self.command, self.path, self.headers, body)
                except OSError:
                    self.close_connection = True
                    return None
                between.after(self.command, self.path)
                if said == "lose":
                    return self.answer(500, XML % b"InternalError")
                return self.answer(status, answer, headers, said)

            def answer(self, status, body, headers=(), how=None):
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                if not headers:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if how == "cut":
                    body, self.close_connection = body[: len(body) // 2], True
                if self.command != "HEAD":
                    with contextlib.suppress(ConnectionError):  # who asked waits no longer
                        self.wfile.write(body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = take

            def log_message(self, *_):
                pass

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._http.server_port}"
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def ask(self, method, path, headers, body):
        line = http.client.HTTPConnection(self.server.hostname, self.server.port, timeout=DEADLINE)
        try:
            passed = {name: value for name, value in headers.items() if name.lower() not in ("expect", "connection")}
            line.request(method, path, body, passed)
            answer = line.getresponse()
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in ("connection", "transfer-encoding")]
            return answer.status, kept, answer.read()
        finally:
            line.close()

    def times(self, count, said, method=None, word=""):
        """The first so many requests of that kind get `said`, or what it gives when it is called."""
        left = [count]

        def rule(asked, path):
            if method in (None, asked) and word in path and left[0]:
                left[0] -= 1
                return said
            return None

        self.rule = rule

    def close(self):
        self._http.shutdown()
        self._http.server_close()


XML = b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>%s</Code><Message>said by the test</Message></Error>'
CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied", 409: "ConditionalRequestConflict", 501: "NotImplemented"}


class ObjectStoreCase(unittest.TestCase):
    """Tests with a store of their own, whose keys are in the environment."""

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
        """Each test has a prefix of its own."""
        return f"s3://{bucket}/{self.id()}?endpoint={endpoint or self.server.endpoint}"
