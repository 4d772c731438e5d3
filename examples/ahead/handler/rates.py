"""Returns the rates of an outside server, and writes to an outside journal without waiting."""
import http.server
import os
import socket
import socketserver
import urllib.request


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with urllib.request.urlopen(f"http://{os.environ['RATES']}/rates", timeout=10) as answer:
            rates = answer.read()
        self.append_to_journal(f"{self.path} {len(rates)}\n")
        self.send_response(200)
        self.send_header("Content-Length", str(len(rates)))
        self.end_headers()
        self.wfile.write(rates)

    def append_to_journal(self, line):
        host, port = os.environ["JOURNAL"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as journal:
            journal.sendall(line.encode())


socketserver.TCPServer.allow_reuse_address = True
http.server.ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
