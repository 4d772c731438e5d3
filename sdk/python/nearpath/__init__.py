"""Functions that take calls and make them, over the nearest path there is.

    import nearpath
    nearpath.serve(lambda request: nearpath.call("currency", request.body))

Inside a domain a call goes through shared memory, everywhere else over HTTP through the gateway; Response.path tells which. The
same program runs inside nearpath, beside a plain OpenFaaS gateway, and alone.

`from nearpath import requests` is `requests` whose calls of functions take the same way.

`nearpath.buffer(n)` is memory to write a payload in that goes out where it lies.

A thread is a party of its own from its first call on; `serve` runs one call at a time, on the thread that calls it, or several
with `threads=N`. An iterator as a payload, or as what a handler returns, is sent as it yields. Bodies are
read-only memoryviews of shared memory: nothing is copied, and the memory is free when the last view is gone. Keep bytes(body),
not the view. A child that was forked is a party of its own; what came before is its parent's.
"""

try:
    from . import _nearpath as _implementation
except ImportError as error:  # another system than the one that the wheel is for: HTTP is what is left
    if error.name != "nearpath._nearpath":
        raise
    from . import _http as _implementation

__all__ = [
    "Buffer",
    "Error",
    "Published",
    "Request",
    "Response",
    "buffer",
    "call",
    "call_later",
    "gather",
    "handed_on",
    "notify",
    "publish",
    "serve",
]

globals().update({name: getattr(_implementation, name) for name in __all__})  # types: __init__.pyi
