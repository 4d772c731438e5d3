"""Lambda's Runtime API, as the runtime interface client asks it: one server for each environment.

GET  /2018-06-01/runtime/invocation/next              the next invocation, when there is one
POST /2018-06-01/runtime/invocation/ID/response       what the handler returned
POST /2018-06-01/runtime/invocation/ID/error          what it raised
POST /2018-06-01/runtime/init/error                   why there is no handler
"""

import http.server
import sys
import threading

from environment import Outcome, error_body

LARGEST = 6 << 20


def serve(environment):
    class Connection(Requests):
        pass

    Connection.environment = environment
    server = Server(("127.0.0.1", 0), Connection)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
    return server


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """An environment that was killed hangs up in the middle of anything."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Requests(http.server.BaseHTTPRequestHandler):
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

    def do_GET(self):
        if self.path != "/2018-06-01/runtime/invocation/next":
            return self.answer(404)
        invocation = self.environment.next()
        if invocation is None:  # the environment has ended, and its client with it
            return self.close()
        self.answer(
            200,
            invocation.payload,
            {
                "Lambda-Runtime-Aws-Request-Id": invocation.id,
                "Lambda-Runtime-Deadline-Ms": str(int(invocation.deadline * 1000)),
                "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
                "Lambda-Runtime-Trace-Id": "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=0",
            },
        )

    def do_POST(self):
        body = self.body()
        match self.path.removeprefix("/2018-06-01/runtime/").split("/"):
            case ["invocation", request_id, "response"]:
                self.end(request_id, body, None)
            case ["invocation", request_id, "error"]:
                self.end(request_id, body, "Unhandled")
            case ["init", "error"]:
                self.environment.init_failed(body)
                self.answer(202)
            case _:
                self.answer(404)

    def end(self, request_id, body, error):
        current = self.environment.current
        if current.id != request_id:
            return self.answer(400, b'{"errorType": "InvalidRequestID"}')
        if len(body) > LARGEST:
            kind, message = (
                "Function.ResponseSizeTooLarge",
                f"Response payload size exceeded maximum allowed payload size ({LARGEST} bytes).",
            )
            current.end(Outcome(error_body(kind, message), "Unhandled"))
            return self.answer(413)
        current.end(Outcome(body, error))
        self.answer(202)

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status, body=b"", headers=None):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def close(self):
        self.close_connection = True

    def log_message(self, *_):
        pass
