"""Workers in functions of nearpath or OpenFaaS."""

import math
import pathlib
import sys
import threading

from ._callbacks import Callbacks
from ._gateway import Gateway
from ._places import Place, Started
from ._request import Request

SILENCE_TIMEOUT = 30.0  # seconds without an `alive` line, which follows each 5 s
GATEWAY_TIMEOUT = 60.0  # seconds, default `upstream_timeout` of OpenFaaS's gateway


class Functions(Place):
    """Runs each worker as a request to a function, whose process is `python -m nearpath.dataflow serve MODULE`.

    A request is held open while its worker runs. A gateway of OpenFaaS may cut it before the function's `exec_timeout`. With
    `callback`, an address of this machine that the gateway reaches (`http://HOST:PORT`), functions that may run for more than a
    minute start workers through that gateway's queue. The queue calls back at their end. It must run as many functions at a time
    as the job has workers.

    `auth` is the name and password with which the gateway describes the function. The default is `$NEARPATH_PASSWORD`, and for a
    gateway on this machine the one made by `nearpath up`. `limit` is the time limit of a request in seconds, by default the
    function's. `memory` is the paid memory of each start in GB. A start without capacity is retried for `start_timeout` seconds.
    `secret` is the secret of the function (`serve --secret NAME`), or a file with it.

    Raises LookupError for a missing function, and ConnectionError if no gateway responds.
    """

    name = "functions"

    def __init__(
        self,
        gateway: str = "http://127.0.0.1:8080",
        function: str = "dataflow",
        *,
        auth: tuple[str, str] | None = None,
        limit: float | None = None,
        memory: float | None = None,
        start_timeout: float = 60.0,
        callback: str | None = None,
        secret: str | pathlib.Path | None = None,
    ) -> None:
        self.gateway, self.function, self.memory, self.start_timeout = Gateway(gateway, auth), function, memory, start_timeout
        self.secret = None if secret is None else _read_secret(secret)
        description = self.gateway.describe(function)
        self.is_nearpath = description is not None and description.is_nearpath
        self.limit = limit or (math.inf if description is None else description.max_seconds())
        if description is None and limit is None:
            print(f"{self.gateway.url} does not describe the time limit of {function!r}: pass auth=(NAME, PASSWORD) or limit=SECONDS", file=sys.stderr)
        self._callback = None if self.is_nearpath or self.limit <= GATEWAY_TIMEOUT else callback
        self._callbacks = self._listen()
        self._requests: list[Request] = []

    def start(self, worker: str, orders: bytes) -> Started:
        """Sends the request on its own thread."""
        silence_timeout = SILENCE_TIMEOUT if self.is_nearpath else None  # other gateways may buffer the heartbeats
        self._callbacks = self._callbacks or self._listen()  # an earlier job may have closed the place
        request = Request(self.gateway, self.function, orders, self.start_timeout, silence_timeout, self.secret, self._callbacks)
        self._requests = [other for other in self._requests if other.ended() is None] + [request]
        threading.Thread(target=request.run, name=f"nearpath {worker}", daemon=True).start()
        return request

    def close(self) -> None:
        """Disconnects from running workers."""
        for request in self._requests:
            request.stop()
        if self._callbacks is not None:
            self._callbacks.close()
            self._callbacks = None

    def _listen(self) -> Callbacks | None:
        return Callbacks(self._callback) if self._callback else None


def _read_secret(secret: str | pathlib.Path) -> bytes:
    """Reads a secret as the function does, without surrounding space."""
    value = (secret.read_bytes() if isinstance(secret, pathlib.Path) else secret.encode()).strip()
    if not value or b"\n" in value or b"\r" in value:
        raise ValueError("invalid secret: expected one line of text")
    return value
