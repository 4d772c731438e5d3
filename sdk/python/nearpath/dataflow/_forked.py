"""Workers that are processes of this machine, forked from the job's own: closures and what is loaded go with them."""

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
from ._decide import Attempt, Word
from ._graph import Stage
from ._members import Crew, Member, Plan
from ._run import Running, Saying, raised, work
from ._workers import Worker

# A worker says so often how far it is.
SAY = 0.25


class Pipe:
    """Words between two processes: a line of JSON each."""

    def __init__(self, line: socket.socket) -> None:
        self._socket, self._rest = line, b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def say(self, word: Word) -> None:
        with contextlib.suppress(OSError):  # who is gone is found out by its end
            self._socket.sendall(json.dumps(word).encode() + b"\n")

    def hear(self) -> list[Word] | None:
        """What has come, without waiting when something has; None at the end."""
        try:
            came = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + came).split(b"\n")
        return [json.loads(line) for line in lines] if came else None


class Forked(Member):
    """A process."""

    def __init__(self, name: str, pid: int, pipe: Pipe, selector: selectors.BaseSelector) -> None:
        super().__init__(name)
        self._pid, self._pipe, self._selector = pid, pipe, selector
        self._pidfd, self._is_open = os.pidfd_open(pid), True
        self._code: int | None = None
        selector.register(pipe, selectors.EVENT_READ, self)
        selector.register(self._pidfd, selectors.EVENT_READ, self)

    def say(self, word: Word) -> None:
        if self._is_open:
            self._pipe.say(word)

    def heard(self) -> list[Word]:
        words: list[Word] = []
        while self._is_open and (came := self._pipe.hear()) != []:
            if came is None:
                self._close_pipe()
            words += came or []
        return words

    def ended(self) -> str | None:
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if not pid:
                return None
            self._bury(os.waitstatus_to_exitcode(status))
        if self._code:
            return f"signal {-self._code}" if self._code < 0 else f"exit code {self._code}"
        return ""

    def stop(self) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._bury(os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1]))
        self._close_pipe()

    def _bury(self, code: int) -> None:
        self._code = code
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)

    def _close_pipe(self) -> None:
        if self._is_open:
            self._is_open = False
            self._selector.unregister(self._pipe)
            self._pipe.close()

    def forget(self) -> None:
        """In another child: what was this member's is not its."""
        if self._is_open:
            self._pipe.close()


class Forks(Crew):
    """All workers of a job, on this machine."""

    def __init__(self, stages: Mapping[str, Stage]) -> None:
        self._stages, self._members = stages, dict[str, Forked]()
        self._token, self._selector = secrets.token_bytes(32), selectors.DefaultSelector()

    def start(self, plan: Plan) -> Forked:
        name, parent = plan.part["name"], os.getpid()
        ours, theirs = socket.socketpair()
        sys.stdout.flush(), sys.stderr.flush()  # or the child writes it once more
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._be_worker(plan, Pipe(theirs), parent)
        theirs.close()
        ours.setblocking(False)
        self._members[name] = Forked(name, pid, Pipe(ours), self._selector)
        return self._members[name]

    def _be_worker(self, plan: Plan, pipe: Pipe, parent: int) -> NoReturn:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job hears it, and ends its workers
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _native.die_with_parent(parent)
            for member in self._members.values():
                member.forget()
            code = live(plan, self._stages[plan.part["name"]].worker, pipe, self._token)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

    def word(self, attempt: Attempt, plan: Plan) -> Word | None:
        """Once all are there, each learns where those are to whom it speaks."""
        if not attempt.introduced or not attempt.seen[plan.part["name"]].ready:
            return None
        to = [port["worker"] for port in plan.part["outputs"] if port["type"] == "tcp"]
        ports = {other: attempt.seen[other].word.get("port") for other in to if other in attempt.seen}
        return {"attempt": attempt.number, "cut": attempt.pending, "ports": ports, **attempt.grown(plan.part["name"])}

    def news(self, seconds: float) -> list[Member]:
        return list(dict.fromkeys(key.data for key, _ in self._selector.select(seconds)))

    def close(self) -> None:
        self._selector.close()


def live(plan: Plan, make: Callable[[], Worker], pipe: Pipe, token: bytes) -> int:
    """A worker's life: one attempt. What its process ends with."""
    door = _native.Door()
    said = Saying(pipe.say, attempt=plan.attempt)
    said.change(port=door.port)
    try:
        running = Running(plan, make(), said)
    except BaseException as error:
        raised(said, error)
        return 1
    word = _first_word(pipe)

    def connect(orders: str) -> _native.Streams:
        ports = {name: port for name, port in word["ports"].items() if port is not None}  # the others come later
        running.streams = streams = _native.Streams(orders, door, token, ports)
        running.heed(word)
        threading.Thread(target=_listen, args=(pipe, running), daemon=True).start()
        return streams

    return work(running, connect)


def _first_word(pipe: Pipe) -> Word:
    """Once all are there, the job says where."""
    while (words := pipe.hear()) is not None:
        if words:
            return words[-1]
    os._exit(3)  # the job ended before its workers were there


def _listen(pipe: Pipe, running: Running) -> None:
    """On a thread of its own: checkpoints that begin, and a word now and then on how far the worker is."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(SAY):
                running.said.change(report=running.report())
                continue
            words = pipe.hear()
            if words is None:
                os._exit(3)  # nobody is there to work for
            for word in words:
                running.heed(word)
