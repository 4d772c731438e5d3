"""Shared HTTP server and client of the shop's Python services.

It uses plain HTTP and the standard library. A service listens on 127.0.0.1:$PORT, and calls
function NAME at $gateway_url/function/NAME. Bodies are JSON.
"""

import collections
import http.client
import http.server
import json
import os
import select
import sys
import urllib.parse

GATEWAY = urllib.parse.urlsplit(os.environ.get("gateway_url", "http://gateway:8080"))
PORT = int(os.environ.get("PORT", "5000"))
CALL_TIMEOUT = 10.0  # seconds of silence in a call to another function
FORWARDED_HEADERS = ("X-Call-Id", "traceparent", "tracestate")  # identify the calls of one request


class Problem(Exception):
    """Ends a request with a status other than 200."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Request:
    """A request. Path parameters are the handler's arguments."""

    def __init__(self, target, headers, body):
        self.query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(target).query))
        self.headers = headers
        self.raw = body
        self.reply_headers = []

    def json(self):
        """Parses the body. Invalid bodies raise the error response."""
        try:
            return json.loads(self.raw)
        except ValueError as error:
            raise Problem(400, f"the body is not JSON: {error}") from None

    def call(self, function, method, path, body=None, timeout=CALL_TIMEOUT):
        """Calls another function and returns its response. Forwards its status 4xx; other errors become 502."""
        headers = {name: self.headers[name] for name in FORWARDED_HEADERS if name in self.headers}
        try:
            status, platform, answer = exchange(method, f"/function/{function}{path}", headers, body, timeout)
        except (OSError, http.client.HTTPException) as error:
            raise Problem(502, f"{function}: {error!r}") from error
        if status == 200:
            return json.loads(answer)
        text = answer.decode(errors="replace").strip()
        raise Problem(status if 400 <= status < 500 and not platform else 502, f"{function} answered {status}: {text}")


IDLE = collections.deque()  # unused connections to the gateway; append and pop are atomic


def exchange(method, path, headers, body, timeout):
    """Sends one request over a kept connection. Returns the status, the platform flag and the body."""
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    connection = take_connection()
    connection.sock.settimeout(timeout)
    try:
        connection.request(method, path, data, headers)
        response = connection.getresponse()
        answer = response.read()
    except BaseException:
        connection.close()
        raise
    if response.will_close:
        connection.close()
    else:
        IDLE.append(connection)
    return response.status, response.getheader("X-OpenFaaS-Internal") is not None, answer


def take_connection():
    """Returns an idle connection, or a new one. A readable idle connection was closed by the gateway."""
    while IDLE:
        try:
            connection = IDLE.pop()
        except IndexError:
            break  # another thread took the last one
        if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
            return connection
        connection.close()
    connection = http.client.HTTPConnection(GATEWAY.hostname, GATEWAY.port or 80, timeout=CALL_TIMEOUT)
    connection.connect()  # sets TCP_NODELAY
    return connection


ROUTES = []


def route(method, pattern):
    """Registers a handler. `{}` in the pattern stands for one path segment, given to the handler as an argument."""

    def register(handler):
        ROUTES.append((method, pattern.split("/"), handler))
        return handler

    return register


def find(method, path):
    """Returns the handler of a request and its arguments."""
    segments, status = [urllib.parse.unquote(part) for part in path.split("/")], 404
    for known, pattern, handler in ROUTES:
        if len(pattern) != len(segments) or any(p not in ("{}", s) for p, s in zip(pattern, segments)):
            continue
        if known == method:
            return handler, [s for p, s in zip(pattern, segments) if p == "{}"]
        status = 405
    raise Problem(status, f"no {method} {path} here")


class Handler(http.server.BaseHTTPRequestHandler):
    """Responds with the handler's result as JSON."""

    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True
    wbufsize = 65536  # header and body leave in one write

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.path, self.headers, body)
        status, result = 200, None
        try:
            if "Transfer-Encoding" in self.headers:  # http.server does not decode chunks
                self.close_connection = True
                raise Problem(411, "send the body with a Content-Length")
            handler, arguments = find(self.command, urllib.parse.urlsplit(self.path).path)
            result = handler(request, *arguments)
        except Problem as problem:
            status, result = problem.status, {"error": str(problem)}
        except Exception as error:  # a bug: the caller gets the exception's text, the log the traceback
            self.log_error("%s %s: %r", self.command, self.path, error)
            status, result = 500, {"error": repr(error)}
        self.reply(status, json.dumps(result).encode(), request.reply_headers)

    do_GET = do_POST = do_PUT = do_DELETE = answer

    def reply(self, status, body, headers):
        self.send_response(status)
        if self.close_connection:
            headers = [*headers, ("Connection", "close")]
        for name, value in [("Content-Type", "application/json"), ("Content-Length", str(len(body))), *headers]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass  # the gateway's access log has it


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


def serve():
    """Serves until the process ends."""
    with Server(("127.0.0.1", PORT), Handler) as server:
        print(f"listening on 127.0.0.1:{server.server_port}", file=sys.stderr)
        server.serve_forever()
