"""Local workers: processes of this machine, with a connection to the job's process."""

import contextlib
import itertools
import os
import secrets
import selectors
import socket
import struct
from collections.abc import Mapping

from ._attempt import Attempt, ControlMessage
from ._backend import Diagnosis, Plan, WorkerBackend, WorkerHandle
from ._exit_cause import OutOfMemoryKills
from ._graph import Stage
from ._local_worker import InheritedFiles, WorkerStart
from ._pipe import Pipe
from ._process_state import StackFile, describe_wait
from ._start_methods import LocalProcess, StartMethod, fork, start_importing

# Heartbeats within the silence timeout, and the longest interval between two, s.
HEARTBEATS_PER_SILENCE = 10
MAX_HEARTBEAT_INTERVAL = 1.0


class LocalWorker(WorkerHandle):
    """A worker process on this machine."""

    def __init__(self, name: str, process: LocalProcess, pipe: Pipe, selector: selectors.BaseSelector, stacks: StackFile, kills: OutOfMemoryKills) -> None:
        super().__init__(name)
        self._process, self._pipe, self._selector, self._stacks = process, pipe, selector, stacks
        self._is_open, self._heartbeats = True, 0
        self._kills, self._group, self._cause = kills, kills.begin(process.pid), ""
        self._code: int | None = None
        self._has_new_heartbeat = False
        selector.register(pipe, selectors.EVENT_READ, self)
        selector.register(process.sentinel, selectors.EVENT_READ, self)

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

    def record_heartbeat(self) -> None:
        self._heartbeats += 1
        self._has_new_heartbeat = True

    def take_heartbeat(self) -> bool:
        has_new, self._has_new_heartbeat = self._has_new_heartbeat, False
        return has_new

    def diagnose(self) -> Diagnosis:
        if self._code is not None:
            return Diagnosis()
        # A stopped process cannot write its stacks. One without a heartbeat has no handler of the signal, which would end it.
        state, is_stopped = describe_wait(self._process.pid)
        return Diagnosis(state, self._stacks.dump(self._process.pid) if self._heartbeats and not is_stopped else "")

    def ended(self) -> str | None:
        if self._code is None:
            if (code := self._process.exit_code()) is None:
                return None
            self._record_exit(code, self._kills.describe_exit(code, self._group))
        return self._cause

    def stop(self) -> None:
        if self.ended() is None:
            self._process.kill()
            code = self._process.exit_code(wait=True)
            assert code is not None, "a process that was waited for has an exit code"
            self._record_exit(code, "stopped by its job")  # not described by the kernel's count, which explains another's end
        self._close_pipe()

    def _record_exit(self, code: int, cause: str) -> None:
        self._code, self._cause = code, cause
        self._selector.unregister(self._process.sentinel)
        self._process.close()

    def _close_pipe(self) -> None:
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._pipe)
            self._pipe.close()

    def close_in_child(self) -> None:
        """Closes this worker's pipe in another forked child."""
        if self._is_open:
            self._pipe.close()


class LocalBackend(WorkerBackend):
    """Starts all workers of a job on this machine."""

    def __init__(self, stages: Mapping[str, Stage], method: StartMethod, silence_timeout: float) -> None:
        self._stages, self._method, self._handles = stages, method, dict[str, LocalWorker]()
        self._token, self._selector = secrets.token_bytes(32), selectors.DefaultSelector()
        self._interval = min(MAX_HEARTBEAT_INTERVAL, silence_timeout / HEARTBEATS_PER_SILENCE)
        self._numbers, self._starts = itertools.count(), dict[int, LocalWorker]()
        self._kills, self._stacks, (self._heartbeats, heartbeats) = OutOfMemoryKills(), StackFile(), os.pipe()
        self._files = InheritedFiles(heartbeats, self._stacks.fileno())
        os.set_blocking(self._heartbeats, False)
        self._selector.register(self._heartbeats, selectors.EVENT_READ, None)

    def start(self, plan: Plan) -> LocalWorker:
        name, number = plan.part["name"], next(self._numbers)
        start = WorkerStart(plan, self._stages[name].worker, self._token, number, self._interval)
        ours, theirs = socket.socketpair()
        process = self._start_process(start, ours, theirs)
        theirs.close()
        ours.setblocking(False)
        self._handles[name] = self._starts[number] = LocalWorker(name, process, Pipe(ours), self._selector, self._stacks, self._kills)
        return self._handles[name]

    def _start_process(self, start: WorkerStart, ours: socket.socket, theirs: socket.socket) -> LocalProcess:
        if self._method != "fork":
            return start_importing(self._method, start, theirs, self._files)

        def close_others() -> None:
            ours.close()
            os.close(self._heartbeats)  # or heartbeats would not fail after the job's end
            for handle in self._handles.values():
                handle.close_in_child()

        return fork(start, theirs, self._files, close_others)

    def message_for(self, attempt: Attempt, plan: Plan) -> ControlMessage | None:
        """Returns the ports of a worker's peers after all workers have joined."""
        if not attempt.has_all_joined or not attempt.workers[plan.part["name"]].ready:
            return None
        to = [port["worker"] for port in plan.part["outputs"] if port["type"] == "tcp"]
        ports = {other: attempt.workers[other].message.get("port") for other in to if other in attempt.workers}
        return {"attempt": attempt.number, "checkpoint": attempt.pending, "ports": ports, **attempt.scale_out_message(plan.part["name"])}

    def poll(self, seconds: float) -> list[WorkerHandle]:
        ready = [key.data for key, _ in self._selector.select(seconds)]
        return list(dict.fromkeys([handle for handle in ready if handle] + (self._receive_heartbeats() if None in ready else [])))

    def _receive_heartbeats(self) -> list[WorkerHandle]:
        """Reads the numbers of starts from the shared pipe, whose writes are atomic."""
        with contextlib.suppress(BlockingIOError):
            received = os.read(self._heartbeats, 1 << 16)
            handles = [self._starts[number] for (number,) in struct.iter_unpack("<I", received) if number in self._starts]
            for handle in handles:
                handle.record_heartbeat()
            return [*handles]
        return []

    def close(self) -> None:
        self._selector.close()
        self._stacks.close()
        os.close(self._heartbeats)
        os.close(self._files.heartbeats)
