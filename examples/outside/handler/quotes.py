"""Returns the response of an outside server. A POST names another server, which is unreachable."""
import http.server
import os
import socketserver
import urllib.request


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.fetch(os.environ["QUOTES"])

    def do_POST(self):
        self.fetch(self.rfile.read(int(self.headers["Content-Length"])).decode())

    def fetch(self, address):
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
                self.answer(200, answer.read())
        except OSError as error:
            self.answer(502, f"{address}: {error}\n".encode())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


socketserver.TCPServer.allow_reuse_address = True
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
