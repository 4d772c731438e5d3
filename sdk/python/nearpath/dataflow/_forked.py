"""Local workers, forked from the job's process, so closures and loaded modules are available in them."""

import contextlib
import json
import os
import secrets
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from . import _native
from ._attempt import Attempt, ControlMessage
from ._graph import Stage
from ._backend import WorkerBackend, WorkerHandle, Plan
from ._run import WorkerRun, StateReporter, report_exception, work
from ._workers import Worker

# Seconds between two progress reports of a worker.
REPORT_INTERVAL = 0.25


class Pipe:
    """Control messages between two processes, one line of JSON each."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket, self._rest = connection, b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, message: ControlMessage) -> None:
        with contextlib.suppress(OSError):  # a dead peer is detected by its end
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[ControlMessage] | None:
        """Returns the received messages, [] if a non-blocking socket has none, and None at the end."""
        try:
            received = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + received).split(b"\n")
        return [json.loads(line) for line in lines] if received else None


class ForkedWorker(WorkerHandle):
    """A forked worker process."""

    def __init__(self, name: str, pid: int, pipe: Pipe, selector: selectors.BaseSelector) -> None:
        super().__init__(name)
        self._pid, self._pipe, self._selector = pid, pipe, selector
        self._pidfd, self._is_open = os.pidfd_open(pid), True
        self._code: int | None = None
        selector.register(pipe, selectors.EVENT_READ, self)
        selector.register(self._pidfd, selectors.EVENT_READ, self)

    def send(self, message: ControlMessage) -> None:
        if self._is_open:
            self._pipe.send(message)

    def receive(self) -> list[ControlMessage]:
        messages: list[ControlMessage] = []
        while self._is_open and (received := self._pipe.receive()) != []:
            if received is None:
                self._close_pipe()
            messages += received or []
        return messages

    def ended(self) -> str | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if not pid:
                return None
            self._record_exit(os.waitstatus_to_exitcode(status))
        if self._code:
            return f"signal {-self._code}" if self._code < 0 else f"exit code {self._code}"
        return ""

    def stop(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._record_exit(os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]))
        self._close_pipe()

    def _record_exit(self, code: int) -> None:
        self._code = code
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)

    def _close_pipe(self) -> None:
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._pipe)
            self._pipe.close()

    def close_in_child(self) -> None:
        """Closes this worker's pipe in another forked child."""
        if self._is_open:
            self._pipe.close()


class ForkBackend(WorkerBackend):
    """Forks all workers of a job on this machine."""

    def __init__(self, stages: Mapping[str, Stage]) -> None:
        self._stages, self._handles = stages, dict[str, ForkedWorker]()
        self._token, self._selector = secrets.token_bytes(32), selectors.DefaultSelector()

    def start(self, plan: Plan) -> ForkedWorker:
        name, parent = plan.part["name"], os.getpid()
        ours, theirs = socket.socketpair()
        sys.stdout.flush(), sys.stderr.flush()  # or the child writes the buffer again
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._run_child(plan, Pipe(theirs), parent)
        theirs.close()
        ours.setblocking(False)
        self._handles[name] = ForkedWorker(name, pid, Pipe(ours), self._selector)
        return self._handles[name]

    def _run_child(self, plan: Plan, pipe: Pipe, parent: int) -> NoReturn:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job receives it and ends its workers
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _native.die_with_parent(parent)
            for handle in self._handles.values():
                handle.close_in_child()
            code = run_worker(plan, self._stages[plan.part["name"]].worker, pipe, self._token)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

    def message_for(self, attempt: Attempt, plan: Plan) -> ControlMessage | None:
        """Returns the ports of a worker's peers after all workers have joined."""
        if not attempt.has_all_joined or not attempt.workers[plan.part["name"]].ready:
            return None
        to = [port["worker"] for port in plan.part["outputs"] if port["type"] == "tcp"]
        ports = {other: attempt.workers[other].message.get("port") for other in to if other in attempt.workers}
        return {"attempt": attempt.number, "checkpoint": attempt.pending, "ports": ports, **attempt.scale_out_message(plan.part["name"])}

    def poll(self, seconds: float) -> list[WorkerHandle]:
        return list(dict.fromkeys(key.data for key, _ in self._selector.select(seconds)))

    def close(self) -> None:
        self._selector.close()


def run_worker(plan: Plan, make: Callable[[], Worker], pipe: Pipe, token: bytes) -> int:
    """Runs one attempt in the worker process and returns its exit code."""
    listener = _native.Listener()
    reporter = StateReporter(pipe.send, attempt=plan.attempt)
    reporter.change(port=listener.port)
    try:
        running = WorkerRun(plan, make(), reporter)
    except BaseException as error:
        report_exception(reporter, error)
        return 1
    message = _first_message(pipe)

    def connect(orders: str) -> _native.Streams:
        ports = {name: port for name, port in message["ports"].items() if port is not None}  # the others start later
        running.streams = streams = _native.Streams(orders, listener, token, ports)
        running.handle(message)
        threading.Thread(target=_listen, args=(pipe, running), daemon=True).start()
        return streams

    return work(running, connect)


def _first_message(pipe: Pipe) -> ControlMessage:
    """Waits for the job's first message, which follows after all workers have joined."""
    while (messages := pipe.receive()) is not None:
        if messages:
            return messages[-1]
    os._exit(3)  # the job ended before all workers had joined


def _listen(pipe: Pipe, running: WorkerRun) -> None:
    """Handles the job's messages and reports progress, on its own thread."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(REPORT_INTERVAL):
                running.reporter.change(report=running.report())
                continue
            messages = pipe.receive()
            if messages is None:
                os._exit(3)  # the job's process has ended
            for message in messages:
                running.handle(message)
