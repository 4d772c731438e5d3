"""Implements the SDK over HTTP with the standard library, for systems without the native module."""

import collections
import collections.abc
import contextvars
import http.client
import http.server
import os
import re
import sys
import time
import traceback
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

from . import _wire
from ._paths import CALLER_NO_ENDPOINT, PATHS
from ._reasons import RETRY_IS_SAFE
from ._urls import NAME, gateway

MAX_BODY_BYTES = 64 << 20
CONNECTION = {"connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
PATH_HEADER = "x-nearpath-path"
# The running handler's traceparent and deadline, which its calls propagate.
CALL_CONTEXT = contextvars.ContextVar("nearpath", default=(None, None))


class Error(Exception):
    """A failed call: .kind, .function, .path, .retry_is_safe, .status, .reason, .text"""

    def __init__(self, kind, function, cause, path="http", status=None, reason=None, text=None):
        super().__init__(f"nearpath: {function}{' over ' + path if path else ''}: {cause}")
        self.kind, self.function, self.path, self.status, self.reason, self.text = kind, function, path, status, reason, text
        self.retry_is_safe = kind == "unsent" or reason in RETRY_IS_SAFE


Published = collections.namedtuple("Published", ["sent", "missed"])


class Buffer(bytearray):
    """A writable payload. A call takes it once, after all other views are released."""

    in_slot, _is_taken = False, False

    def truncate(self, length, /):
        del self[length:]

    def _take(self):
        if self._is_taken:
            raise BufferError("the buffer was consumed by an earlier call: create another one")
        payload = bytes(self)
        self.clear()  # BufferError while a view exists
        self._is_taken = True
        return payload


def buffer(length, /):
    """Returns a zeroed buffer for a payload."""
    return Buffer(length)


class Response:
    """A response: received, or returned by a handler."""

    def __init__(self, body=None, status=200, headers=None):
        self.status, self.headers, self.path, self.obstacle, self.instance = status, dict(headers or {}), None, None, None
        self.length = None
        self.fields = list(self.headers.items())
        self._stream = body if _is_iterator(body) else None
        self._body = memoryview(b"" if self._stream else _bytes(body)).toreadonly()

    @property
    def body(self):
        if self._stream is not None:
            self._body = memoryview(b"".join(_bytes(part) for part in self.stream)).toreadonly()
        return self._body

    @property
    def stream(self):
        stream, self._stream = self._stream, None
        return iter([self._body] if stream is None and self._body else stream or ())

    def close(self):
        stream, self._stream = self._stream, None
        if hasattr(stream, "close"):
            stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Request:
    """A received call."""

    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, memoryview(body)
        self.caller, self.arrival_path, self.is_event, self.topic = None, "http", False, None
        self._expires_at = _expires_at(headers.get("x-timeout"))

    @property
    def time_left(self):
        return None if self._expires_at is None else max(0.0, self._expires_at - time.monotonic())

    @property
    def stream(self):
        return iter([self.body] if self.body else ())


def _is_iterator(payload):
    return isinstance(payload, collections.abc.Iterator)


def _bytes(payload):
    if payload is None:
        return b""
    if isinstance(payload, Buffer):
        return payload._take()
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def _expires_at(timeout):
    """Returns when an X-Timeout (`30`, `1m30s`, `250ms`) expires; None without one."""
    units = {"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    parts = re.findall(r"([0-9.]+)(ms|us|ns|h|m|s)", timeout or "")
    try:
        seconds = float(timeout) if not parts and timeout else sum(float(number) * units[unit] for number, unit in parts)
    except ValueError:
        return None
    return time.monotonic() + seconds if seconds > 0 else None


def propagated_fields():
    """Returns the header fields with which another client propagates trace and deadline: traceparent and x-timeout."""
    trace, expires_at = CALL_CONTEXT.get()
    fields = [] if trace is None else [("traceparent", trace)]
    return fields if expires_at is None else [*fields, ("x-timeout", f"{max(1, int(1000 * (expires_at - time.monotonic())))}ms")]


def _remaining_seconds(deadline):
    """Returns the seconds until the earlier of the call's and the handler's deadline; None without one."""
    if deadline is not None and not deadline >= 0:
        raise ValueError(f"invalid duration {deadline}: expected seconds, 0 or more")
    expires_at = CALL_CONTEXT.get()[1]
    left = None if expires_at is None else max(0.001, expires_at - time.monotonic())
    return min((limit for limit in (deadline, left) if limit is not None), default=None)


def _send(
    route, name, payload, method=None, path=None, headers=None, deadline=None, idle_timeout=None, idempotent=False, shm_only=False, stream=False
):
    if not NAME.fullmatch(name):
        raise Error("name", name, "invalid function name: expected NAME or NAME.NAMESPACE in lower case", path=None)
    if shm_only:
        raise Error("unsent", name, "not sent: shared memory does not reach it, and shm_only permits no other path", path=None)
    path = "" if path in (None, "/") else path
    slash = "" if not path or path[0] in "/?" else "/"
    url = f"{gateway()}/{route}/{name}{slash}{path}"
    limit = _remaining_seconds(deadline)
    fields = _fields(route, headers, limit)
    limit = min((limit for limit in (limit, idle_timeout) if limit is not None), default=None)
    send_once = lambda data: _send_once(name, url, method or "POST", fields, data, limit, stream)
    if _is_iterator(payload):
        return send_once(map(_bytes, payload))
    data = _bytes(payload)
    try:
        return send_once(data)
    except Error as error:
        if not (idempotent and error.kind == "died"):
            raise
        return send_once(data)


def _fields(route, headers, limit):
    fields = {"content-type": "application/octet-stream", **{name.lower(): value for name, value in (headers or {}).items()}}
    fields = {name: value for name, value in fields.items() if name not in CONNECTION}
    own = dict(propagated_fields())
    if route == "function":
        own[PATH_HEADER] = "?"
        if limit is not None:
            own["x-timeout"] = f"{max(1, int(1000 * limit))}ms"
    else:
        own.pop("x-timeout", None)  # no caller waits for the response
    return {**own, **fields}


def _send_once(name, url, method, fields, data, limit, stream):
    try:
        answer = _wire.send(url, method, fields, data, limit)
    except _wire.Unreachable as error:
        raise Error("unsent", name, f"not sent: the gateway is unreachable: {error}") from None
    except TimeoutError:
        raise Error("timeout", name, "no answer before the deadline; the call may have run") from None
    except (http.client.HTTPException, OSError) as error:
        raise Error("died", name, f"no answer: {error!r}; the call may have run") from None
    return _read(name, answer, stream)


def _parts(name, answer):
    with answer:
        while True:
            try:
                part = answer.read1(65536)
            except TimeoutError:
                raise Error("timeout", name, "no answer before the deadline; the call may have run") from None
            except (http.client.HTTPException, OSError) as error:
                raise Error("truncated", name, f"the answer was truncated: {error!r}") from None
            if not part:
                return
            yield memoryview(part)


def _read(name, answer, stream):
    if stream and not answer.headers.get("x-nearpath-reason"):
        return _response(_parts(name, answer), answer)
    with answer:
        try:
            body = answer.read(MAX_BODY_BYTES + 1)
        except TimeoutError:
            raise Error("timeout", name, "no answer before the deadline; the call may have run") from None
        except (http.client.HTTPException, OSError) as error:
            raise Error("truncated", name, f"the answer was truncated: {error!r}") from None
    if len(body) > MAX_BODY_BYTES:
        raise Error("too_large", name, f"the answer is larger than {MAX_BODY_BYTES} bytes")
    if reason := answer.headers.get("x-nearpath-reason"):
        text = body.decode(errors="replace").rstrip()
        raise Error("platform", name, f"the platform answered {answer.status} {reason}: {text}", "http", answer.status, reason, text)
    return _response(body, answer)


def _response(body, answer):
    fields = [(key.lower(), value) for key, value in answer.headers.items() if key.lower() not in {*CONNECTION, PATH_HEADER}]
    response = Response(body, answer.status, dict(reversed(fields)))
    response.fields = fields
    response.length = int(length) if (length := answer.headers.get("content-length", "")).isdecimal() else None
    response.path, response.obstacle = reported_path(answer.headers.get(PATH_HEADER, ""))
    return response


def reported_path(field):
    """Returns the path of a response and the obstacle of a nearer one. An unknown path counts as HTTP."""
    path, *parts = [part.strip() for part in field.split(";")]
    if path not in PATHS:
        return "http", CALLER_NO_ENDPOINT
    obstacles = [part.removeprefix("obstacle=") for part in parts if part.startswith("obstacle=")]
    return path, obstacles[0] if obstacles else None if path == "shm" else CALLER_NO_ENDPOINT


def call(name, payload=None, /, **options):
    """Calls a function and returns its response, whatever its status."""
    return _send("function", name, payload, **options)


def gather(*calls, return_errors=False, **options):
    """Calls several functions concurrently, each given as (name, payload). The responses have the same order."""
    with ThreadPoolExecutor(max(1, len(calls))) as threads:
        futures = [threads.submit(contextvars.copy_context().run, call, *each, **options) for each in calls]
    return [each.exception() if return_errors and isinstance(each.exception(), Error) else each.result() for each in futures]


def call_later(name, payload=None, /, *, callback=None, headers=None, **options):
    """Queues a call at the gateway, which POSTs the response to callback. Returns the call's id, if it has one."""
    headers = dict(headers or {}) | ({"X-Callback-Url": callback} if callback else {})
    accepted = _send("async-function", name, payload, headers=headers, **options)
    if not 200 <= accepted.status < 300:
        text = bytes(accepted.body).decode(errors="replace").rstrip()
        raise Error("platform", name, f"the platform answered {accepted.status}: {text}", status=accepted.status, text=text)
    return accepted.headers.get("x-call-id")


def notify(name, payload=None, /, **options):
    """Sends an event, which has no response."""
    call_later(name, payload, **options)


def publish(topic, payload=None, /, **options):
    """Sends an event to the topic's subscribers. Over HTTP there are none."""
    _bytes(payload)  # consumes a buffer, like all calls
    if not topic or len(topic.encode()) > 0xFFFF or any(character in topic for character in "+#\0"):
        raise Error("name", "", f"invalid topic {topic!r}: expected 1 to 65535 bytes without wildcards (+, #)", path=None)
    return Published(0, 0)


def _answer(returned):
    if isinstance(returned, tuple):
        status, inner = returned
        response = _answer(inner)
        response.status = status
        return response
    return returned if isinstance(returned, Response) else Response(returned)


def _listen():
    upstream, port = os.environ.get("upstream_url"), os.environ.get("PORT")
    if upstream:
        url = urllib.parse.urlsplit(upstream)
        return url.hostname or "127.0.0.1", url.port or int(port or 80)
    return "", int(port or 5000)


def serve(handler, /, *, threads=1, stream=False):
    """Serves until SIGTERM or SIGINT. Requests are read completely, also with stream."""
    import signal
    import threading

    slots = threading.BoundedSemaphore(threads)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

        def _take(self):
            CALL_CONTEXT.set((self.headers.get("traceparent"), _expires_at(self.headers.get("x-timeout"))))
            with slots:
                self._answer(self._body())

        def _body(self):
            if "chunked" not in self.headers.get("transfer-encoding", ""):
                return self.rfile.read(int(self.headers.get("content-length") or 0))
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return body

        def _write(self, pieces):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                for piece in map(_bytes, pieces):
                    if piece:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                self.wfile.write(b"0\r\n\r\n")
            except Exception:
                traceback.print_exc(file=sys.stderr)
                self.close_connection = True  # without the final chunk, so the reader gets an error

        def _answer(self, body):
            headers = {key.lower(): value for key, value in self.headers.items()}
            try:
                answer = _answer(handler(Request(self.command, self.path, headers, body)))
            except Exception as raised:
                traceback.print_exc(file=sys.stderr)
                answer = Response(f"{type(raised).__name__}: {raised}", 500)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in CONNECTION:
                    self.send_header(name, value.decode("latin-1") if isinstance(value, bytes) else value)
            if answer._stream is not None:
                return self._write(answer.stream)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = do_OPTIONS = _take

        def log_message(self, *_):
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads, request_queue_size = True, 128

    address = _listen()
    try:
        server = Server(address, Handler)
    except OSError as error:
        text = f"cannot listen on {address[0]}:{address[1]}: {error}; set another port with `upstream_url` or `PORT`"
        raise Error("listen", "", text, path=None) from None
    stop = lambda *_: threading.Thread(target=server.shutdown).start()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
    with server:
        server.serve_forever()
