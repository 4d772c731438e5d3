"""Runs one worker in a process group."""

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
from ._exit_cause import OutOfMemoryKills

KILL_GRACE = 2.0  # seconds between SIGTERM and SIGKILL
MAX_ERROR_BYTES = 4096  # bytes of stderr that are kept for the description of the end
READ_BYTES = 1 << 16
_kills = OutOfMemoryKills()  # of this process's instance, shared by its workers


class WorkerCancelled(Exception):
    """Cancels a worker whose caller or instance has ended, with the reason."""


class Child:
    """A worker's process group. `end` must be called exactly once."""

    def __init__(self, command: Sequence[str], orders: bytes) -> None:
        with open(os.memfd_create("orders"), "w+b") as stdin:  # the orders contain a private key, so they stay in memory
            stdin.write(orders)
            stdin.seek(0)
            self._process = subprocess.Popen(command, stdin=stdin, stderr=subprocess.PIPE, start_new_session=True)
        assert self._process.stderr is not None
        self._group = _kills.begin(self._process.pid)
        self._errors, self._pidfd = self._process.stderr, os.pidfd_open(self._process.pid)
        self._started_at, self._last_errors = time.monotonic(), b""

    def watch(self, caller: socket.socket, stop_event: int, interval: float) -> Iterator[float]:
        """Yields the age in s at each `interval`. Raises WorkerCancelled if the caller leaves or the instance stops."""
        with selectors.DefaultSelector() as selector:
            for file in (self._pidfd, self._errors, caller, stop_event):
                selector.register(file, selectors.EVENT_READ)
            next_heartbeat = self._started_at + interval
            while True:
                ready = [key.fileobj for key, _ in selector.select(max(0.0, next_heartbeat - time.monotonic()))]
                if self._errors in ready and not self._forward_errors():
                    selector.unregister(self._errors)
                if caller in ready and not caller.recv(1):  # further data of the caller has no meaning
                    raise WorkerCancelled("the caller has disconnected")
                if stop_event in ready:
                    raise WorkerCancelled("the instance is stopping")
                if self._pidfd in ready:
                    return
                if (now := time.monotonic()) >= next_heartbeat:
                    next_heartbeat = now + interval
                    yield now - self._started_at

    def end(self) -> tuple[int, str]:
        """Ends the process group if it still runs. Returns the exit code and its description."""
        if not _readable(self._pidfd, 0.0):
            self._signal(signal.SIGTERM)
            _readable(self._pidfd, KILL_GRACE)
        self._signal(signal.SIGKILL)  # before the wait, while no other process can have its id
        code = self._process.wait()
        while _readable(self._errors.fileno(), 0.0) and self._forward_errors():
            pass
        os.close(self._pidfd)
        self._errors.close()
        self._remove_folder()
        return code, self._describe_end(code)

    def _remove_folder(self) -> None:
        """Removes the folder of a killed worker, because an instance has little disk space."""
        _temporary.sweep(f"{_temporary.WORKER}{self._process.pid}-")

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _forward_errors(self) -> bool:
        """Copies stderr to the log and keeps its end. Returns whether more may follow."""
        received = os.read(self._errors.fileno(), READ_BYTES)
        with contextlib.suppress(OSError):
            os.write(2, received)
        self._last_errors = (self._last_errors + received)[-MAX_ERROR_BYTES:]
        return bool(received)

    def _describe_end(self, code: int) -> str:
        how = _kills.describe_exit(code, self._group) or "exit code 0"
        *_, last = self._last_errors.decode(errors="replace").rstrip().rpartition("\n")
        return f"{how}: {last.strip()}" if last else how


def _readable(file: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
