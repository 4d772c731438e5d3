"""Returns the request's body with its content type."""

import http.server
import os


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keep-alive
    disable_nagle_algorithm = True
    wbufsize = 65536  # header and body leave in one write

    def echo(self):
        if "Transfer-Encoding" in self.headers:  # http.server does not decode chunks
            return self.send_error(411)  # and this closes the connection
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Type", self.headers.get("Content-Type", "text/plain"))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = echo

    def log_request(self, *_):
        pass  # the gateway's access log has it


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # pending connections; Python's default of 5 overflows under load


Server(("127.0.0.1", int(os.environ.get("PORT", "5000"))), Handler).serve_forever()
