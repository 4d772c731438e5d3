"""A function for test_domain.py, in its own process."""

import collections
import gzip
import json
import os
import sys
import threading
import time

import nearpath

exported_views = []
request_counts = collections.Counter()


made_pieces = ended_streams = 0
topics = []
barrier = threading.Barrier(4)


def yield_events(request):
    global made_pieces, ended_streams
    try:
        while True:
            made_pieces += 1
            yield b"data: %b\n\n" % bytes(60_000)
    finally:
        ended_streams += 1


def yield_slowly():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)  # the next piece detects that the reader has left
        yield ""


def fail_midway():
    yield "some"
    raise ValueError("it broke")


def handle(request):
    if request.is_event:
        topics.append((request.topic, bytes(request.body)))
        return None
    match "/" + request.path.partition("?")[0].rpartition("/")[2]:
        case "/how":
            properties = [request.arrival_path, request.method, request.caller, request.headers.get("x-one"), request.time_left is not None]
            return nearpath.Response(repr(properties), status=203, headers={"X-By": "python"})
        case "/raise":
            raise ValueError("it broke")
        case "/die":
            os._exit(3)
        case "/nothing":
            return None
        case "/pair":
            return 418, "tea"
        case "/buffer":
            buffer = nearpath.buffer(len(request.body))
            with memoryview(buffer) as view:
                view[:] = bytes(request.body)[::-1]
            return nearpath.Response(headers={"x-in-slot": str(buffer.in_slot)}, body=buffer)
        case "/held":
            buffer = nearpath.buffer(5)
            exported_views.append(memoryview(buffer))
            return buffer
        case "/upper":
            return bytearray(bytes(request.body).upper())
        case "/shout":
            return (bytes(part).upper() for part in request.stream)
        case "/count":
            return str(sum(len(part) for part in request.stream))
        case "/body":
            first = bytes(next(request.stream, b""))
            return first + bytes(request.body)
        case "/events":
            return nearpath.Response(yield_events(request), status=207, headers={"Content-Type": "text/event-stream"})
        case "/seen":
            return f"{made_pieces} {ended_streams}"
        case "/broken":
            return fail_midway()
        case "/topics":
            return repr(topics)
        case "/together":
            barrier.wait(60)
            return "together"
        case "/hang":
            # until the caller has disconnected
            return yield_slowly()
        case "/pass":
            return nearpath.call("callee", request.stream, path="/shout", stream=True)
        case "/mirror":
            properties = {"method": request.method, "path": request.path, "headers": request.headers, "body": bytes(request.body).decode("latin-1")}
            return nearpath.Response(json.dumps(properties), headers={"Content-Type": "application/json"})
        case "/moved":
            return nearpath.Response(status=302, headers={"Location": "moved/mirror"})
        case "/packed":
            return nearpath.Response(gzip.compress(b"unpacked"), headers={"Content-Encoding": "gzip"})
        case "/flaky":
            request_counts[request.path] += 1
            return (503, "busy") if request_counts[request.path] < 3 else f"{request_counts[request.path]} times"
        case "/long":
            return bytes(300_000)
        case "/on":
            inner = nearpath.call("callee", request.body, shm_only=True)
            return nearpath.Response(inner.body, headers={"x-inner": inner.path})
    return request.body


nearpath.serve(handle, threads=int(os.environ.get("THREADS", "1")), stream="STREAM" in os.environ)
sys.exit(0)
