"""Returns one mebibyte for each request."""

import http.server
import os

BODY = bytes(range(256)) * 4096


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)

    do_POST = do_GET

    def log_request(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # pending connections; Python's default of 5 overflows under load


Server(("127.0.0.1", int(os.environ.get("PORT", "5000"))), Handler).serve_forever()
