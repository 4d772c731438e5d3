"""Shared HTTP server and client of the services.

It uses the standard library. A service listens on 127.0.0.1:$PORT and calls function NAME at
$gateway_url/function/NAME, with a new connection for each call, like the original. Bodies are JSON.
"""

import http.client
import http.server
import json
import os
import sys
import threading
import urllib.parse

GATEWAY = urllib.parse.urlsplit(os.environ.get("gateway_url", "http://gateway:8080"))
PORT = int(os.environ.get("PORT", "5000"))
CALL_TIMEOUT = 20.0  # seconds of silence in a call to another function
FORWARDED_HEADERS = ("X-Call-Id", "traceparent", "tracestate")  # identify the calls of one request


class Problem(Exception):
    """Ends a request with a status other than 200."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Request:
    """A request and its calls."""

    def __init__(self, target, headers, body):
        self.query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(target).query))
        self.headers = headers
        self.raw = body

    def json(self, *fields):
        """Parses the body, an object with at least these fields. Invalid bodies raise the error response."""
        try:
            body = json.loads(self.raw)
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None
        missing = [name for name in fields if not isinstance(body, dict) or body.get(name) in (None, "")]
        if missing:
            raise Problem(400, f"the body lacks {', '.join(missing)}")
        return body

    def call(self, function, body=None, path="/"):
        """POSTs the body to another function, or GETs without one. Forwards its status 4xx; other errors become 502."""
        headers = {name: self.headers[name] for name in FORWARDED_HEADERS if name in self.headers}
        try:
            status, platform, answer = exchange(f"/function/{function}{path}", headers, body)
        except (OSError, http.client.HTTPException) as error:
            raise Problem(502, f"{function}: {error!r}") from error
        if status == 200:
            return json.loads(answer)
        text = answer.decode(errors="replace").strip()
        raise Problem(status if 400 <= status < 500 and not platform else 502, f"{function} answered {status}: {text}")

    def notify(self, function, body):
        """Calls without waiting for the response. A failure is logged; the end of this process loses the call."""

        def deliver():
            try:
                self.call(function, body)
            except Problem as problem:
                print(f"notification failed: {problem}", file=sys.stderr)

        threading.Thread(target=deliver, daemon=True).start()


def exchange(path, headers, body):
    """Sends one request over its own connection. Returns the status, the platform flag and the body."""
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    connection = http.client.HTTPConnection(GATEWAY.hostname, GATEWAY.port or 80, timeout=CALL_TIMEOUT)
    try:
        connection.request("GET" if data is None else "POST", path, data, {**headers, "Connection": "close"})
        response = connection.getresponse()
        return response.status, response.getheader("X-OpenFaaS-Internal") is not None, response.read()
    finally:
        connection.close()


ROUTES = {}  # (method, path) → handler


def route(method, path="/"):
    """Registers the handler of a method and path."""

    def register(handler):
        ROUTES[method, path] = handler
        return handler

    return register


class Handler(http.server.BaseHTTPRequestHandler):
    """Responds with the handler's result as JSON."""

    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True
    wbufsize = 65536  # header and body leave in one write

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, result = 200, self.run_handler(Request(self.path, self.headers, body))
        except Problem as problem:
            status, result = problem.status, {"error": str(problem)}
        except Exception as error:  # a bug: the caller gets the exception's text, the log the traceback
            self.log_error("%s %s: %r", self.command, self.path, error)
            status, result = 500, {"error": repr(error)}
        self.reply(status, json.dumps(result).encode())

    do_GET = do_POST = answer

    def run_handler(self, request):
        if "Transfer-Encoding" in self.headers:  # http.server does not decode chunks
            self.close_connection = True
            raise Problem(411, "send the body with a Content-Length")
        path = urllib.parse.urlsplit(self.path).path
        if (self.command, path) not in ROUTES:
            known = any(path == other for _, other in ROUTES)
            raise Problem(405 if known else 404, f"no {self.command} {path} here")
        return ROUTES[self.command, path](request)

    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass  # the gateway's access log has it


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128

    def handle_error(self, request, client_address):
        """Ignores disconnected callers."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve():
    """Serves until the process ends."""
    with Server(("127.0.0.1", PORT), Handler) as server:
        print(f"listening on 127.0.0.1:{server.server_port}", file=sys.stderr)
        server.serve_forever()
