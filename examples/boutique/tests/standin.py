"""A stand-in for nearpath: starts the ten services as plain processes and routes /function/NAME between them.

It writes down every call, so that tests can hold the call graph against README.md. The functions and their commands come
from stack.yml, read with a few lines that know just this file's layout (the standard library has no YAML).
"""

import collections
import http.client
import http.server
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

BOUTIQUE = pathlib.Path(__file__).resolve().parent.parent
SERVICES = BOUTIQUE / "services"
ROOT = BOUTIQUE.parent.parent


def functions():
    """Name and command of every function in stack.yml."""
    text = (BOUTIQUE / "stack.yml").read_text()
    return re.findall(r"^  ([a-z]+):\n    handler: \./services\n    fprocess: (.+)$", text, re.MULTILINE)


def program(name):
    """The newest build of a compiled service."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [place for place in (target / "debug" / name, target / "release" / name) if place.exists()]
    if not built:
        raise RuntimeError(f"{name} is not built: run `cargo build -p {name}`")
    return str(max(built, key=lambda place: place.stat().st_mtime))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


Call = collections.namedtuple("Call", "caller_id function method path")


class StandIn:
    """The running shop. `calls` lists what was called, in order; names in `broken` answer 503 like a platform error."""

    def __init__(self, native=False):
        self.calls, self.broken, self.ports, self.processes = [], set(), {}, []
        router = type("Router", (Router,), {"shop": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), router)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.native = native
        try:
            self.start_all()
        except BaseException:
            self.stop()
            raise

    def start_all(self):
        for name, command in functions():
            if self.native:
                self.start(name, f"{program('boutique-native')} --service {name} --transport http --listen 127.0.0.1:PORT")
            elif name != "email":
                self.start(name, command)
        for port in self.ports.values():
            until_listening(port)

    def start(self, name, command):
        self.ports[name] = free_port()
        command = command.replace("./bin/currency", program("boutique-currency")) if "./bin" in command else command
        words = command.replace("python3", sys.executable).replace(":PORT", f":{self.ports[name]}").split()
        gateway = f"http://127.0.0.1:{self.server.server_port}"
        env = {"PATH": os.environ["PATH"], "PORT": str(self.ports[name]), "gateway_url": gateway}
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # this folder is what gets deployed: leave nothing in it
        process = subprocess.Popen(words, cwd=SERVICES, env=env, stderr=subprocess.DEVNULL)
        self.processes.append(process)

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        for process in self.processes:
            process.kill()
            process.wait()

    def answer(self, name, method, path, headers, body):
        """What function `name` answers: status, header fields, body."""
        if name in self.broken:
            return 503, [("X-OpenFaaS-Internal", "gateway")], b"no instance"
        if name == "email" and not self.native:
            done = subprocess.run(["sh", "email.sh"], cwd=SERVICES, input=body, capture_output=True, timeout=30)
            return (200 if done.returncode == 0 else 500), [], done.stdout or done.stderr
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[name], timeout=30)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            kept = [(k, v) for k, v in response.getheaders() if k.lower() in ("content-type", "set-cookie")]
            return response.status, kept, response.read()
        finally:
            connection.close()


class Router(http.server.BaseHTTPRequestHandler):
    """Routes /function/NAME/PATH. `shop` is set by StandIn."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def route(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, _, name, *rest = self.path.split("/", 3)
        path = "/" + (rest[0] if rest else "")
        self.shop.calls.append(Call(self.headers.get("X-Call-Id"), name, self.command, path))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
        status, kept, answer = self.shop.answer(name, self.command, path, headers, body)
        self.send_response(status)
        for key, value in [*kept, ("Content-Length", str(len(answer)))]:
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_DELETE = route

    def log_message(self, *_):
        pass


def until_listening(port):
    for _ in range(3000):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.01)
    raise RuntimeError(f"nothing listens on port {port} after 30 s")
