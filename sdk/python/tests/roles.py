"""A function for test_domain.py, as a process of its own."""

import os
import sys

import nearpath

held = []


def answer(request):
    match request.path:
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
        case "/on":
            inner = nearpath.call("callee", request.body, near_only=True)
            return nearpath.Response(inner.body, headers={"x-inner": inner.path})
    return request.body


nearpath.serve(answer)
sys.exit(0)
