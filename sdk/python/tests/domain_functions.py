"""A function for test_domain.py, as a process of its own."""

import collections
import gzip
import json
import os
import sys
import threading
import time

import nearpath

held = []
asked = collections.Counter()


made = ended = 0
topics = []
together = threading.Barrier(4)


def endless(request):
    global made, ended
    try:
        while True:
            made += 1
            yield b"data: %b\n\n" % bytes(60_000)
    finally:
        ended += 1


def hangs():
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(0.01)  # the next piece finds that nobody reads
        yield ""


def broken():
    yield "some"
    raise ValueError("it broke")


def answer(request):
    if request.is_event:
        topics.append((request.topic, bytes(request.body)))
        return None
    match "/" + request.path.partition("?")[0].rpartition("/")[2]:
        case "/how":
            told = [request.came_over, request.method, request.caller, request.headers.get("x-one"), request.time_left is not None]
            return nearpath.Response(repr(told), status=203, headers={"X-By": "python"})
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
            with memoryview(buffer) as place:
                place[:] = bytes(request.body)[::-1]
            return nearpath.Response(headers={"x-in-slot": str(buffer.in_slot)}, body=buffer)
        case "/held":
            buffer = nearpath.buffer(5)
            held.append(memoryview(buffer))
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
            return nearpath.Response(endless(request), status=207, headers={"Content-Type": "text/event-stream"})
        case "/seen":
            return f"{made} {ended}"
        case "/broken":
            return broken()
        case "/topics":
            return repr(topics)
        case "/together":
            together.wait(60)
            return "together"
        case "/hang":
            # until the caller has left: nobody reads what comes
            return hangs()
        case "/pass":
            return nearpath.call("callee", request.stream, path="/shout", stream=True)
        case "/mirror":
            told = {"method": request.method, "path": request.path, "headers": request.headers, "body": bytes(request.body).decode("latin-1")}
            return nearpath.Response(json.dumps(told), headers={"Content-Type": "application/json"})
        case "/moved":
            return nearpath.Response(status=302, headers={"Location": "moved/mirror"})
        case "/packed":
            return nearpath.Response(gzip.compress(b"unpacked"), headers={"Content-Encoding": "gzip"})
        case "/flaky":
            asked[request.path] += 1
            return (503, "busy") if asked[request.path] < 3 else f"{asked[request.path]} times"
        case "/long":
            return bytes(300_000)
        case "/on":
            inner = nearpath.call("callee", request.body, near_only=True)
            return nearpath.Response(inner.body, headers={"x-inner": inner.path})
    return request.body


nearpath.serve(answer, threads=int(os.environ.get("THREADS", "1")), stream="STREAM" in os.environ)
sys.exit(0)
