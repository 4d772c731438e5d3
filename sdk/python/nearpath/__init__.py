"""Serves and calls functions over the nearest path.

    import nearpath
    nearpath.serve(lambda request: nearpath.call("currency", request.body))

Inside a domain a call goes through shared memory, elsewhere over HTTP through the gateway. Response.path names the path. The
same program runs inside nearpath, with a plain OpenFaaS gateway, and alone.

`from nearpath import requests` is the package `requests` with function calls over the same paths.

`nearpath.buffer(n)` is memory for a payload that is sent without a copy.

Each thread is its own endpoint from its first call on. `serve` runs one call at a time on the calling thread, or several with
`threads=N`. An iterator as payload or response is streamed as it yields. Bodies are read-only memoryviews of shared memory.
Nothing is copied, and the last view frees the memory: keep bytes(body), not the view. A forked child is its own endpoint.
Earlier objects belong to the parent.
"""

try:
    from . import _nearpath as _implementation
except ImportError as error:  # a system without the native module uses HTTP
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
    "propagated_fields",
    "notify",
    "publish",
    "serve",
]

globals().update({name: getattr(_implementation, name) for name in __all__})  # types: __init__.pyi
