"""Orders for workers in functions, and a stand-in for OpenFaaS's gateway: what that documents of one function, in front of the
function's own server. It knows nothing of nearpath.

GET  /system/info, /system/function/NAME    with the name and password admin, secret
POST /function/NAME                         held, as it streams; cut after `upstream_timeout` seconds
POST /async-function/NAME                   202; the answer goes to X-Callback-Url, with X-Function-Status
"""

import base64
import contextlib
import http.client
import http.server
import json
import socket
import threading
import urllib.request

HTTP = {"mode": "http", "upstream_url": "http://127.0.0.1:5000"}
ADMIN = "Basic " + base64.b64encode(b"admin:secret").decode()


def orders(do, module="jobs", file=None, **more):
    code = {"module": module, "name": "job", "arguments": {"do": do, "file": file}}
    return json.dumps({"version": 1, "job": "sort-1", "worker": "map.0", "code": code, **more}).encode()


class Faas:
    def __init__(self, upstream, variables, upstream_timeout=60.0):
        self.upstream, self.variables, self.upstream_timeout = upstream, variables, upstream_timeout
        self.asked = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"faas": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    @contextlib.contextmanager
    def call(self, body, fields, timeout=None):
        """The function's answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=timeout)) as connection:
            connection.request("POST", "/", body, fields)
            yield connection.getresponse()

    def queue(self, url, body):
        """What the queue's worker does."""
        with self.call(body, {}) as answer:
            fields = {"X-Function-Name": "workers", "X-Function-Status": str(answer.status)}
            request = urllib.request.Request(url, answer.read(), fields, method="POST")
        with contextlib.suppress(OSError):
            urllib.request.urlopen(request).close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.headers.get("Authorization") != ADMIN:
            return self.answer(401, {})
        told = {
            "/system/info": {"provider": {"provider": "faas-netes"}},
            "/system/function/workers": {"name": "workers", "envVars": self.faas.variables},
        }
        self.answer(200 if self.path in told else 404, told.get(self.path))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        route = self.path.split("/")[1]
        self.faas.asked.append(route)
        if route == "function":
            return self.hold(body)
        threading.Thread(target=self.faas.queue, args=(self.headers["X-Callback-Url"], body), daemon=True).start()
        self.answer(202, None)

    def hold(self, body):
        cut = threading.Timer(self.faas.upstream_timeout, self.connection.shutdown, [socket.SHUT_RDWR])
        cut.daemon = True
        cut.start()
        with self.faas.call(body, {}) as answer, contextlib.suppress(OSError):
            self.send_response(answer.status)
            for name in ("Content-Type", "Retry-After"):
                if value := answer.headers.get(name):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while part := answer.read1(65536):
                self.wfile.write(part)
        cut.cancel()
        self.close_connection = True

    def answer(self, status, told):
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
