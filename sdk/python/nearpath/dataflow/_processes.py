"""Runs workers as processes, on this machine or through a command."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from ._code import Code
from ._exit_cause import OutOfMemoryKills
from ._places import Place, Started


class Process(Started):
    """A process that ends with its standard input. Its children end with it."""

    def __init__(self, process: "subprocess.Popen[bytes]", kills: OutOfMemoryKills) -> None:
        self._process, self._kills, self._group = process, kills, kills.begin(process.pid)
        self._cause: str | None = None

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> str | None:
        if self._process.returncode is None and self._has_ended():
            self._end()
        if self._cause is None and self._process.returncode is not None:
            self._cause = self._kills.describe_exit(self._process.returncode, self._group)
        return self._cause

    def wait(self, seconds: float) -> str | None:
        if self._process.returncode is None and not self._has_ended():
            _wait_ended(self.pid, seconds)
        return self.ended()

    def stop(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()  # ends processes that may not be killed (sudo)
        if self._process.returncode is None:
            self._end()

    def _has_ended(self) -> bool:
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # reaped by another thread
            return True

    def _end(self) -> None:
        """Kills the process group before the wait, while no other process can have its id."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()


def _wait_ended(pid: int, seconds: float) -> None:
    """Waits for a child that is not yet reaped, so its id is still its own."""
    process = os.pidfd_open(pid)
    try:
        poll = select.poll()  # select() is limited to 1024 descriptors
        poll.register(process, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(process)


class Processes(Place):
    """Runs each worker as a process.

    `command` precedes `python -m nearpath.dataflow`: `["ip", "netns", "exec", "w1"]`, `["ssh", "host"]`, or a function that returns
    it for a worker's name. `python` is the interpreter there. `environment` is added to that of this process. PYTHONPATH includes
    the folder of the job's module.
    """

    name = "processes"

    def __init__(
        self,
        command: Sequence[str] | Callable[[str], Sequence[str]] = (),
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
        limit: float = math.inf,
        memory: float | None = None,
    ) -> None:
        self._command, self._python, self._environment = command, python, dict(environment or {})
        self.limit, self.memory, self._kills = limit, memory, OutOfMemoryKills()

    def start(self, worker: str, orders: bytes) -> Process:
        command = self._command(worker) if callable(self._command) else self._command
        program = [*command, self._python, "-m", "nearpath.dataflow", "--tied"]
        environment = {**os.environ, **self._environment, "PYTHONPATH": self._path(orders)}
        process = subprocess.Popen(program, bufsize=0, stdin=subprocess.PIPE, env=environment, start_new_session=True)
        assert process.stdin
        with contextlib.suppress(BrokenPipeError):  # already ended; `ended` reports the cause
            process.stdin.write(orders + b"\n")
        return Process(process, self._kills)

    def _path(self, orders: bytes) -> str:
        """Returns the module path of this process."""
        folder = Code.read(json.loads(orders)["code"]).folder()
        path = self._environment.get("PYTHONPATH") or os.pathsep.join(entry for entry in sys.path if entry)
        return os.pathsep.join([folder, path] if folder else [path])
