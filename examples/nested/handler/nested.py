"""f(n) calls f(n-1), down to f(1), and gathers when each call started, invoked the next one and returned.

Times are Unix nanoseconds, outermost call first. The innermost call invokes no function, so `invoke` is one shorter.
"""

import http.server
import json
import os
import time
import urllib.parse
import urllib.request

GATEWAY = os.environ.get("gateway_url", "http://gateway:8080")
MAX_DEPTH = 100


def nested(n):
    start = time.time_ns()
    if n == 1:
        return {"n": 1, "start": [start], "invoke": [], "return": [time.time_ns()]}
    invoke = time.time_ns()
    with urllib.request.urlopen(f"{GATEWAY}/function/nested?n={n - 1}", timeout=30) as answer:
        inner = json.load(answer)
    return {
        "n": n,
        "start": [start, *inner["start"]],
        "invoke": [invoke, *inner["invoke"]],
        "return": [time.time_ns(), *inner["return"]],
    }


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 65536

    def do_GET(self):
        text = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.path).query)).get("n", "1")
        if not text.isdecimal() or not 1 <= int(text) <= MAX_DEPTH:
            return self.answer(400, {"error": f"n is a number from 1 to {MAX_DEPTH}"})
        try:
            self.answer(200, nested(int(text)))
        except (OSError, ValueError) as error:
            self.answer(502, {"error": f"f({int(text) - 1}): {error}"})

    def answer(self, status, result):
        body = json.dumps(result).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # pending connections; Python's default of 5 overflows under load


Server(("127.0.0.1", int(os.environ.get("PORT", "5000"))), Handler).serve_forever()
