"""A gateway that knows what OpenFaaS documents of its data path, and nothing of nearpath: what the SDKs' tests call.

    GET|POST|… /function/NAME[.NAMESPACE][/PATH][?QUERY]    the function's answer; 404 for one that is not there
    POST /async-function/NAME…                              202 with X-Call-Id; the answer goes to X-Callback-Url
    GET /healthz                                            200

Every answer has X-Call-Id, X-Start-Time and X-Duration-Seconds. It prints its URL and serves until its standard input ends.
`/seen` is the tests' own: how many connections were made to it.

Functions: `mirror` tells what it was asked, as JSON; `slow` waits for ever; `ticks` streams; `teapot` answers 418; `cookies` sets two; `moved` redirects;
`packed` is gzip; `currency` is that of the guide's examples; `truncated` aborts its response; `flaky` is busy twice; `long` answers 300,000 bytes;
`kept` redirects with the body.

With `--tls FOLDER` it speaks TLS as `localhost`; the certificate to trust is FOLDER/authority.pem, which openssl makes.
"""

import argparse
import collections
import gzip
import http.server
import json
import pathlib
import ssl
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
import uuid

NAMESPACE = "openfaas-fn"
stopped = threading.Event()
times = collections.Counter()


class Connection(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    connections = 0

    def setup(self):
        Connection.connections += 1
        super().setup()

    def route(self):
        where = urllib.parse.urlsplit(self.path)
        _, first, *rest = where.path.split("/", 3)
        body = self.body()
        if first == "healthz":
            return self.reply(200, b"OK", {})
        if first == "seen":
            return self.reply(200, str(Connection.connections).encode(), {})
        name, path = (rest[0] if rest else ""), "/" + (rest[1] if len(rest) > 1 else "")
        name, _, namespace = name.partition(".")
        request = {"method": self.command, "path": path, "query": where.query, "headers": dict(self.headers), "body": body.decode("latin-1")}
        if first not in ("function", "async-function") or (first == "async-function" and self.command != "POST"):
            return self.reply(404, b"404 page not found\n", {})
        if name not in FUNCTIONS or namespace not in ("", NAMESPACE):
            return self.reply(404, f"error finding function {name}.{namespace or NAMESPACE}\n".encode(), {})
        if first == "async-function":
            return self.later(name, request)
        return FUNCTIONS[name](self, request)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = route

    def body(self):
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def begin(self, status, fields):
        self.send_response(status)
        for name, value in [("X-Call-Id", str(uuid.uuid4())), ("X-Start-Time", str(time.time_ns())), ("X-Duration-Seconds", "0.000001"), *fields]:
            self.send_header(name, value)

    def reply(self, status, body, fields):
        self.begin(status, [*(fields.items() if isinstance(fields, dict) else fields), ("Content-Length", str(len(body)))])
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def later(self, name, request):
        call, callback = str(uuid.uuid4()), self.headers.get("x-callback-url")
        self.send_response(202)
        for field in (("X-Call-Id", call), ("X-Start-Time", str(time.time_ns())), ("Content-Length", "0")):
            self.send_header(*field)
        self.end_headers()
        if callback:
            threading.Thread(target=self.call_back, args=(callback, call, name, request), daemon=True).start()

    def call_back(self, callback, call, name, request):
        fields = {"X-Call-Id": call, "X-Function-Name": name, "X-Function-Status": "200", "X-Duration-Seconds": "0.000001"}
        try:
            urllib.request.urlopen(urllib.request.Request(callback, json.dumps(request).encode(), fields, method="POST")).close()
        except OSError:
            pass  # no callback server

    def log_message(self, *_):
        pass


def slow(connection, request):
    connection.close_connection = True
    stopped.wait()


def ticks(connection, request):
    """Each tick goes when the one before it was read, as far as a connection shows it."""
    connection.begin(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])
    connection.end_headers()
    for k in range(3):
        connection.wfile.write(b"%x\r\n%b\r\n" % (9, b"data: %d\n\n" % k))
        connection.wfile.flush()
    connection.wfile.write(b"0\r\n\r\n")


def flaky(connection, request):
    """Two calls of one query fail."""
    times[request["query"]] += 1
    busy = times[request["query"]] < 3
    connection.reply(503 if busy else 200, b"busy" if busy else b"%d times" % times[request["query"]], {})


def truncated(connection, request):
    connection.begin(200, [("Content-Length", "100")])
    connection.end_headers()
    connection.wfile.write(b"some")
    connection.close_connection = True


FUNCTIONS = {
    "mirror": lambda connection, request: connection.reply(200, json.dumps(request).encode(), {"Content-Type": "application/json"}),
    "currency": lambda connection, request: connection.reply(200, b"1.07", {"Content-Type": "text/plain"}),
    "teapot": lambda connection, request: connection.reply(418, b"tea", {}),
    "cookies": lambda connection, request: connection.reply(200, b"", [("Set-Cookie", "one=1; Path=/"), ("Set-Cookie", "two=2; Path=/")]),
    "moved": lambda connection, request: connection.reply(302, b"", {"Location": "/function/mirror/moved"}),
    "packed": lambda connection, request: connection.reply(200, gzip.compress(b"unpacked"), {"Content-Encoding": "gzip"}),
    "slow": slow,
    "ticks": ticks,
    "truncated": truncated,
    "flaky": flaky,
    "kept": lambda connection, request: connection.reply(307, b"", {"Location": "/function/mirror"}),
    "long": lambda connection, request: connection.reply(200, bytes(300_000), {}),
}


class Server(http.server.ThreadingHTTPServer):
    request_queue_size, daemon_threads = 128, True

    def handle_error(self, request, client_address):
        """A caller who leaves, or does not trust us, is no error of ours."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


def secure(folder):
    """TLS as `localhost`, with a certificate of an authority of its own."""

    def certificate(name, words):
        both = f"-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -keyout {name}.key -out {name}.pem {words}"
        subprocess.run(["openssl", "req", "-x509", *both.split()], cwd=folder, check=True, stderr=subprocess.DEVNULL)

    certificate("authority", "-subj /CN=authority")
    own = "-addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost"
    certificate("localhost", f"-subj /CN=localhost -CA authority.pem -CAkey authority.key {own}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pathlib.Path(folder) / "localhost.pem", pathlib.Path(folder) / "localhost.key")
    return context


def main():
    words = argparse.ArgumentParser(description="A gateway like OpenFaaS's.")
    words.add_argument("--tls", metavar="FOLDER")
    folder = words.parse_args().tls
    server = Server(("127.0.0.1", 0), Connection)
    if folder:
        server.socket = secure(folder).wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(f"https://localhost:{server.server_port}" if folder else f"http://127.0.0.1:{server.server_port}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
