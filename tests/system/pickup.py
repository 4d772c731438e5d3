"""An HTTP handler without the SDK. It echoes requests, or calls another function and returns the response."""

import hashlib
import http.client
import json
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

GATEWAYS = {"call": "gateway", "direct": "10.62.0.1"}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        what, _, rest = self.path.lstrip("/").partition("/")
        if self.headers.get("upgrade"):
            return self.echo_upgraded()
        if what == "sleep":
            open("/tmp/asleep", "w").close()
            time.sleep(float(rest))
        if what == "later":
            open("/tmp/asleep", "w").close()
            time.sleep(1)
            return self.reply(relay("gateway", self.command, rest, body))
        if what in GATEWAYS:
            return self.reply(relay(GATEWAYS[what], self.command, rest, body))
        if what == "chat":
            return self.reply({"said": chat(rest)})
        if what == "events":
            return self.events()
        if what == "large":
            return self.reply("x" * int(rest))
        self.reply(self.echo(body))

    def echo(self, body):
        headers = sorted([name.lower(), value] for name, value in self.headers.items())
        digest = hashlib.sha256(body).hexdigest()
        return {"method": self.command, "path": self.path, "headers": headers, "bytes": len(body), "sha256": digest}

    def reply(self, value):
        text = json.dumps(value).encode()
        self.send_response(203)
        self.send_header("content-type", "application/json")
        self.send_header("x-own", "kept")
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def events(self):
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        for number in range(3):
            self.wfile.write(b"data: %d\n\n" % number)
            self.wfile.flush()

    def echo_upgraded(self):
        """Echoes received data in capitals until the caller disconnects."""
        self.wfile.write(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        while data := self.connection.recv(1024):
            self.connection.sendall(data.upper())
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_HEAD = answer

    def log_message(self, *_):
        pass


def relay(host, method, rest, body):
    """Calls a function and returns its response with the path."""
    connection = http.client.HTTPConnection(host, 8080, timeout=60)
    fields = {"x-nearpath-path": "?", "x-caller": "first", "x-call-id": "one-id"}
    connection.request(method, f"/function/{rest}", body or None, fields)
    answer = connection.getresponse()
    headers = {name.lower(): value for name, value in answer.getheaders()}
    return {"status": answer.status, "headers": headers, "body": answer.read().decode()}


def chat(name):
    connection = socket.create_connection(("gateway", 8080), timeout=60)
    head = f"GET /function/{name} HTTP/1.1\r\nhost: gateway:8080\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
    connection.sendall(head.encode())
    got = b""
    while b"\r\n\r\n" not in got:
        got += connection.recv(1024)
    assert got.startswith(b"HTTP/1.1 101"), got
    connection.sendall(b"hello")
    return connection.recv(1024).decode()


ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
