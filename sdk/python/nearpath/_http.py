"""The same names over HTTP alone, with the standard library: for systems that the native half is not built for."""

import collections
import collections.abc
import http.client
import http.server
import os
import re
import socket
import sys
import traceback
import urllib.error
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor

LARGEST_BODY = 64 << 20
CONNECTION = {"connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
RETRY = {"slow_request", "overload", "queue_timeout", "cold_timeout", "draining", "connect_failed"}
NAME = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z]([a-z0-9-]{0,61}[a-z0-9])?)?")


class Error(Exception):
    """Why there is no answer: .kind, .function, .path, .retry_is_safe"""

    def __init__(self, kind, function, text, path="http", status=None, reason=None):
        super().__init__(f"nearpath: {function}{' over ' + path if path else ''}: {text}")
        self.kind, self.function, self.path, self.status, self.reason = kind, function, path, status, reason
        self.retry_is_safe = kind == "unsent" or reason in RETRY


Published = collections.namedtuple("Published", ["sent", "missed"])


class Buffer(bytearray):
    """A payload to write in. It is taken once, when nobody can write there any more."""

    in_slot, _gone = False, False

    def truncate(self, length, /):
        del self[length:]

    def _take(self):
        if self._gone:
            raise BufferError("the buffer was handed over: make another one")
        payload = bytes(self)
        self.clear()  # BufferError while somebody looks
        self._gone = True
        return payload


def buffer(length, /):
    """So many zeros to write a payload in."""
    return Buffer(length)


class Response:
    """An answer: one that came, or that of a handler."""

    def __init__(self, body=None, status=200, headers=None):
        self.status, self.headers, self.path, self.instance = status, dict(headers or {}), None, None
        self._rest = body if _is_pieces(body) else None
        self._body = memoryview(b"" if self._rest else _bytes(body)).toreadonly()

    @property
    def body(self):
        if self._rest is not None:
            self._body = memoryview(b"".join(_bytes(part) for part in self.stream)).toreadonly()
        return self._body

    @property
    def stream(self):
        rest, self._rest = self._rest, None
        return iter([self._body] if rest is None and self._body else rest or ())

    def close(self):
        rest, self._rest = self._rest, None
        if hasattr(rest, "close"):
            rest.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Request:
    """A call that came in."""

    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, memoryview(body)
        self.caller, self.came_over, self.is_event, self.time_left, self.topic = None, "http", False, None, None

    @property
    def stream(self):
        return iter([self.body] if self.body else ())


def _is_pieces(payload):
    return isinstance(payload, collections.abc.Iterator)


def _bytes(payload):
    if payload is None:
        return b""
    if isinstance(payload, Buffer):
        return payload._take()
    return payload.encode() if isinstance(payload, str) else bytes(payload)


def _gateway():
    url = os.environ.get("NEARPATH_GATEWAY") or os.environ.get("gateway_url")
    return url.rstrip("/") if url else f"http://{os.environ.get('gateway_hostname') or 'gateway'}:8080"


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


_opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))


def _send(route, name, payload, method=None, path=None, headers=None, deadline=None, idempotent=False, near_only=False, stream=False):
    if not NAME.fullmatch(name):
        raise Error("name", name, "no function can have that name", path=None)
    if near_only:
        raise Error("unsent", name, "shared memory does not reach it, and the call may take no other path", path=None)
    path = "" if path in (None, "/") else path
    slash = "" if not path or path[0] in "/?" else "/"
    url = f"{_gateway()}/{route}/{name}{slash}{path}"
    data = map(_bytes, payload) if _is_pieces(payload) else _bytes(payload)
    request = urllib.request.Request(url, data, dict(headers or {}), method=method or "POST")
    request.add_unredirected_header("Content-Type", (headers or {}).get("content-type", "application/octet-stream"))
    try:
        return _once(name, request, deadline, stream)
    except Error as error:
        if not (idempotent and error.kind == "died") or _is_pieces(payload):
            raise
        return _once(name, request, deadline, stream)


def _once(name, request, deadline, stream):
    try:
        answer = _opener.open(request, timeout=deadline)
    except urllib.error.HTTPError as error:
        answer = error
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError):
            raise Error("timeout", name, "no answer before the deadline; the call may have run") from None
        unsent = isinstance(error.reason, (ConnectionRefusedError, socket.gaierror))
        text = "not sent: the gateway cannot be reached" if unsent else "no answer; the call may have run"
        raise Error("unsent" if unsent else "died", name, f"{text}: {error.reason}") from None
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
                raise Error("cut", name, f"the answer was broken off: {error!r}") from None
            if not part:
                return
            yield memoryview(part)


def _read(name, answer, stream):
    if stream and not answer.headers.get("x-nearpath-reason"):
        return _response(_parts(name, answer), answer)
    with answer:
        try:
            body = answer.read(LARGEST_BODY + 1)
        except (http.client.HTTPException, OSError) as error:
            raise Error("cut", name, f"the answer was broken off: {error!r}") from None
    if len(body) > LARGEST_BODY:
        raise Error("too_large", name, f"the answer is larger than {LARGEST_BODY} bytes")
    if reason := answer.headers.get("x-nearpath-reason"):
        text = f"the platform answered {answer.status} {reason}: {body.decode(errors='replace').rstrip()}"
        raise Error("platform", name, text, status=answer.status, reason=reason)
    return _response(body, answer)


def _response(body, answer):
    fields = {key.lower(): value for key, value in reversed(answer.headers.items()) if key.lower() not in CONNECTION}
    response = Response(body, answer.status, fields)
    response.path = "http"
    return response


def call(name, payload=None, /, **how):
    """Calls a function and waits for its answer, whatever status that has."""
    return _send("function", name, payload, **how)


def gather(*calls, return_errors=False, **how):
    """Calls several functions at once: each is (name, payload). The answers come in the same order."""
    with ThreadPoolExecutor(max(1, len(calls))) as threads:
        begun = [threads.submit(call, name, payload, **how) for name, payload in calls]
    return [each.exception() if return_errors and isinstance(each.exception(), Error) else each.result() for each in begun]


def notify(name, payload=None, /, **how):
    """Sends an event: nobody answers."""
    accepted = _send("async-function", name, payload, **how)
    if not 200 <= accepted.status < 300:
        raise Error("platform", name, f"the platform answered {accepted.status}", status=accepted.status)


def publish(topic, payload=None, /, **how):
    """Sends an event to who subscribes to the topic: over HTTP alone nobody does."""
    _bytes(payload)  # taken, as everywhere
    if not topic or len(topic.encode()) > 0xFFFF or any(sign in topic for sign in "+#\0"):
        raise Error("name", "", f"no event can have that topic: {topic!r} is empty, too long, or has a wildcard", path=None)
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
    """Serves until the process is told to stop (SIGTERM, SIGINT). Requests come whole here, also with stream."""
    import signal
    import threading

    free = threading.BoundedSemaphore(threads)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self):
            with free:
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
                self.close_connection = True  # without an end: the reader gets an error

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
            if answer._rest is not None:
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
        text = f"cannot listen on {address[0]}:{address[1]}: {error}; `upstream_url` or `PORT` names the port for HTTP"
        raise Error("listen", "", text, path=None) from None
    stop = lambda *_: threading.Thread(target=server.shutdown).start()
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
    with server:
        server.serve_forever()
