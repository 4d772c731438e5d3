"""Counts visits of a page in a Redis server, which is another function."""

import http.server
import socket


def increment(page):
    """Returns the number of visits of a page, in the protocol of Redis (RESP)."""
    with socket.create_connection(("store", 6379), timeout=30) as store:
        key = page.encode()
        store.sendall(b"*2\r\n$4\r\nINCR\r\n$%d\r\n%s\r\n" % (len(key), key))
        return int(store.makefile().readline()[1:])


class Visits(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        answer = f"{self.path} was visited {increment(self.path)} times\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET


http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Visits).serve_forever()
