"""Orders for workers in functions, and a test double of OpenFaaS's gateway for one function. It does not use nearpath.

GET  /system/info, /system/function/NAME    with the name and password admin, secret
POST /function/NAME                         streamed; disconnected after `upstream_timeout` seconds
POST /async-function/NAME                   202; the response goes to X-Callback-Url, with X-Function-Status
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


def orders(action, module="jobs", file=None, **fields):
    code = {"module": module, "name": "job", "arguments": {"action": action, "file": file}}
    return json.dumps({"version": 1, "job": "sort-1", "worker": "map.0", "code": code, **fields}).encode()


class OpenFaasDouble:
    def __init__(self, upstream, variables, upstream_timeout=60.0):
        self.upstream, self.variables, self.upstream_timeout = upstream, variables, upstream_timeout
        self.routes = []
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"gateway": self}))
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()
        self.server.server_close()

    @contextlib.contextmanager
    def call(self, body, fields, timeout=None):
        """Yields the function's response."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.upstream, timeout=timeout)) as connection:
            connection.request("POST", "/", body, fields)
            yield connection.getresponse()

    def queue(self, url, body):
        """Runs a queued call and posts its response."""
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
        descriptions = {
            "/system/info": {"provider": {"provider": "faas-netes"}},
            "/system/function/workers": {"name": "workers", "envVars": self.gateway.variables},
        }
        self.answer(200 if self.path in descriptions else 404, descriptions.get(self.path))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        route = self.path.split("/")[1]
        self.gateway.routes.append(route)
        if route == "function":
            return self.forward(body)
        threading.Thread(target=self.gateway.queue, args=(self.headers["X-Callback-Url"], body), daemon=True).start()
        self.answer(202, None)

    def forward(self, body):
        timer = threading.Timer(self.gateway.upstream_timeout, self.connection.shutdown, [socket.SHUT_RDWR])
        timer.daemon = True
        timer.start()
        with self.gateway.call(body, {}) as answer, contextlib.suppress(OSError):
            self.send_response(answer.status)
            for name in ("Content-Type", "Retry-After"):
                if value := answer.headers.get(name):
                    self.send_header(name, value)
            self.send_header("Connection", "close")
            self.end_headers()
            while part := answer.read1(65536):
                self.wfile.write(part)
        timer.cancel()
        self.close_connection = True

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass
