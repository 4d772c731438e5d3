"""A process that works on one worker's orders."""

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence

from . import _temporary

GRACE = 2.0  # seconds between SIGTERM and SIGKILL
SAID = 4096  # bytes of its errors that are kept for who asks how it ended
PIECE = 1 << 16


class Unwanted(Exception):
    """Nobody wants the worker any more; says why."""


class Child:
    """A worker's process, and what it has started. `end` must be called, once."""

    def __init__(self, command: Sequence[str], orders: bytes) -> None:
        with open(os.memfd_create("orders"), "w+b") as stdin:  # there is a private key in them: they touch no disk
            stdin.write(orders)
            stdin.seek(0)
            self._process = subprocess.Popen(command, stdin=stdin, stderr=subprocess.PIPE, start_new_session=True)
        assert self._process.stderr is not None
        self._errors, self._pidfd = self._process.stderr, os.pidfd_open(self._process.pid)
        self._began, self._said = time.monotonic(), b""

    def life(self, caller: socket.socket, stops: int, beat: float) -> Iterator[float]:
        """Its age in seconds, every `beat` seconds until it has ended. Unwanted: the caller has gone, or `stops` is readable."""
        with selectors.DefaultSelector() as selector:
            for file in (self._pidfd, self._errors, caller, stops):
                selector.register(file, selectors.EVENT_READ)
            until = self._began + beat
            while True:
                ready = [key.fileobj for key, _ in selector.select(max(0.0, until - time.monotonic()))]
                if self._errors in ready and not self._pass_on():
                    selector.unregister(self._errors)
                if caller in ready and not caller.recv(1):  # what else a caller says has no meaning
                    raise Unwanted("the caller has gone")
                if stops in ready:
                    raise Unwanted("the instance is stopping")
                if self._pidfd in ready:
                    return
                if (now := time.monotonic()) >= until:
                    until = now + beat
                    yield now - self._began

    def end(self) -> tuple[int, str]:
        """Ends it, if it has not ended by itself, and what it has left behind. Its exit code, and how that is told."""
        if not _readable(self._pidfd, 0.0):
            self._tell(signal.SIGTERM)
            _readable(self._pidfd, GRACE)
        self._tell(signal.SIGKILL)  # before it is waited for: until then nobody else has its number
        code = self._process.wait()
        while _readable(self._errors.fileno(), 0.0) and self._pass_on():
            pass
        os.close(self._pidfd)
        self._errors.close()
        self._clear()
        return code, self._told(code)

    def _clear(self) -> None:
        """A worker that was killed leaves its folder, and an instance has little room for these."""
        _temporary.sweep(f"{_temporary.WORKER}{self._process.pid}-")

    def _tell(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _pass_on(self) -> bool:
        """Its errors go to the log; the last of them are kept. Whether more may come."""
        came = os.read(self._errors.fileno(), PIECE)
        with contextlib.suppress(OSError):
            os.write(2, came)
        self._said = (self._said + came)[-SAID:]
        return bool(came)

    def _told(self, code: int) -> str:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        *_, last = self._said.decode(errors="replace").rstrip().rpartition("\n")
        return f"{how}: {last.strip()}" if last else how


def _readable(file: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
