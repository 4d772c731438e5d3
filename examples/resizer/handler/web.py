"""Shared HTTP server of both functions. Its handler returns a content type and a body."""

import collections
import http.server
import os
import sys
import urllib.parse

Request = collections.namedtuple("Request", "path query headers")


class Problem(Exception):
    """Ends a request with a status other than 200."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Handler(http.server.BaseHTTPRequestHandler):
    """Responds with the result of `server.answer`."""

    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True
    wbufsize = 65536  # header and body leave in one write

    def do_GET(self):
        target = urllib.parse.urlsplit(self.path)
        try:
            kind, body = self.server.answer(Request(target.path, dict(urllib.parse.parse_qsl(target.query)), self.headers))
            self.reply(200, kind, body)
        except Problem as problem:
            self.reply(problem.status, "text/plain; charset=utf-8", f"{problem}\n".encode())

    def reply(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass  # the gateway's access log has it


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # pending connections; Python's default of 5 overflows under load

    def handle_error(self, request, client_address):
        """Ignores disconnected callers."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def serve(answer):
    """Answers GET requests with `answer` until the process ends."""
    server = Server(("127.0.0.1", int(os.environ.get("PORT", "5000"))), Handler)
    server.answer = answer
    server.serve_forever()
