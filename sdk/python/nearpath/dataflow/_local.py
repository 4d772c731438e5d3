"""Jobs whose workers are processes of this machine."""

import contextlib
import hashlib
import json
import os
import secrets
import select
import selectors
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from . import _native
from ._graph import Graph, Topology
from ._place import folder, stopped_by_signals
from ._report import PATH, Progress, Report, StageReport
from ._results import Results
from ._run import Line, Plan, main

TICK = 0.1
REPAINT = 0.5
MOMENT = 0.3


class JobFailed(Exception):
    """A job that cannot go on. `worker` and `trace` say where, when a worker's code raised."""

    def __init__(self, why: str, worker: str | None = None, trace: str | None = None) -> None:
        super().__init__(why if trace is None else f"{why}\n\n{trace}")
        self.worker, self.trace = worker, trace


class _Again(Exception):
    """Somebody died; the rest goes back to the last checkpoint."""


@dataclass
class Job:
    """A job that is through."""

    results: list[Any]
    report: Report


@dataclass
class Settings:
    folder: str | None
    every: float
    retries: int
    window: int
    spill: int
    patience: float
    fan_in: int | None
    progress: bool | None


@dataclass
class Member:
    """A worker's process."""

    name: str
    pid: int
    pidfd: int
    line: Line
    port: int | None = None
    said: dict[str, Any] | None = None
    finished: bool = False
    saved: int = 0
    lost: str | None = None
    failed: dict[str, Any] | None = None
    closed: bool = False


class Local:
    """Runs one job."""

    def __init__(self, graph: Graph | Topology, settings: Settings) -> None:
        self.graph, self.settings = graph, settings
        self.workers: dict[str, dict[str, Any]] = {
            worker["name"]: worker for worker in graph.topology(settings.fan_in)["workers"]
        }
        self.stages = {name: graph.stages[worker.get("stage") or name] for name, worker in self.workers.items()}
        self.report = Report(stages={name: StageReport(stage.workers) for name, stage in graph.stages.items()})
        edges = sum(port["type"] == "tcp" for worker in self.workers.values() for port in worker["outputs"])
        self.report.paths = {PATH: edges}
        self.members: dict[str, Member] = {}
        totals = [stage.total for stage in graph.stages.values() if not stage.before and stage.total]
        self.progress = Progress(sum(totals) if totals else None)
        self.attempt, self.shown = 0, 0.0

    def run(self) -> Job:
        """Until it is through. Whatever happens, no process stays, and no folder that was not asked for."""
        self.began = time.monotonic()
        with folder(self.settings.folder) as self.folder, stopped_by_signals():
            self.remember()
            self.results = Results(self.folder)
            self.checkpoints = _native.Checkpoints(os.path.join(self.folder, "checkpoints"))
            try:
                while not self.try_once():
                    pass
                self.report.seconds = time.monotonic() - self.began
                return Job(self.results.take(self.workers), self.report)
            finally:
                self.stop()
                self.clear_line()

    def remember(self) -> None:
        """A folder belongs to one job: another one would go on from what it never did."""
        mark = hashlib.sha256(json.dumps(self.workers, sort_keys=True).encode()).hexdigest()
        path = os.path.join(self.folder, "job")
        if os.path.exists(path):
            with open(path) as file:
                if file.read() != mark:
                    raise ValueError(f"{self.folder} holds another job: give this one a folder of its own")
        with open(path, "w") as file:
            file.write(mark)

    def try_once(self) -> bool:
        """From the last checkpoint to the end, or to a death."""
        try:
            self.start()
            self.attend()
            return True
        except _Again as again:
            self.report.restarts.append(str(again))
            if len(self.report.restarts) > self.settings.retries:
                raise JobFailed(f"gave up after {self.settings.retries} restarts; the last: {again}") from None
            return False
        finally:
            self.stop()
            self.count()

    # Processes.

    def start(self) -> None:
        self.attempt += 1
        manifest = json.loads(self.checkpoints.latest() or '{"number": 0, "finished": []}')
        self.done, self.checkpoint = frozenset(manifest["finished"]), int(manifest["number"])
        self.pending, self.since = 0, time.monotonic()
        self.results.recall()
        plan = Plan(
            self.folder, secrets.token_bytes(32), self.settings.window, self.settings.spill, self.settings.patience,
            self.attempt, self.checkpoint, self.done,
        )  # fmt: skip
        sys.stdout.flush(), sys.stderr.flush()  # or children write it once more
        for name in self.workers:
            if name not in self.done:
                self.members[name] = self.fork(plan, name)

    def fork(self, plan: Plan, name: str) -> Member:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self.be_worker(plan, name, theirs, parent)
        theirs.close()
        ours.setblocking(False)
        return Member(name, pid, os.pidfd_open(pid), Line(ours))

    def be_worker(self, plan: Plan, name: str, line: socket.socket, parent: int) -> NoReturn:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job hears it, and ends its workers
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _native.die_with_parent(parent)
            for member in self.members.values():
                member.line.close()
            code = main(plan, self.workers[name], lambda: self.worker(name), Line(line))
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush(), sys.stderr.flush()
            os._exit(code)

    def worker(self, name: str) -> Any:
        stage = self.stages[name]
        worker = stage.worker()
        mates = [other for other in self.workers if self.stages[other] is stage]
        worker.name, worker.number, worker.of, worker.folder = name, mates.index(name), len(mates), self.folder
        return worker

    def stop(self) -> None:
        """Ends all that still run, and waits for them."""
        for member in self.members.values():
            if not member.closed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
        for member in self.members.values():
            self.close(member)

    def close(self, member: Member) -> int | None:
        if member.closed:
            return None
        member.closed = True
        _, status = os.waitpid(member.pid, 0)
        os.close(member.pidfd)
        member.line.close()
        return os.waitstatus_to_exitcode(status)

    def count(self) -> None:
        for member in self.members.values():
            if member.said:
                stage = self.workers[member.name].get("stage") or member.name
                self.report.stages[stage].add(member.said, member.finished)
        self.members.clear()

    # Words.

    def attend(self) -> None:
        """Hears workers until all are through."""
        with selectors.DefaultSelector() as selector:
            for member in self.members.values():
                selector.register(member.line, selectors.EVENT_READ, member)
                selector.register(member.pidfd, selectors.EVENT_READ, member)
            while not all(member.closed for member in self.members.values()):
                for key, _ in selector.select(TICK):
                    member = key.data
                    if key.fileobj is member.line:
                        if not self.hear(member):
                            selector.unregister(member.line)
                    else:
                        selector.unregister(member.pidfd)
                        with contextlib.suppress(KeyError, ValueError):
                            selector.unregister(member.line)
                        self.bury(member)
                self.judge()
                self.begin_checkpoint()
                self.show()

    def hear(self, member: Member) -> bool:
        """Whether more may come."""
        messages = member.line.hear()
        for message in messages or ():
            self.heed(member, message)
        return messages is not None

    def heed(self, member: Member, message: dict[str, Any]) -> None:
        if "ready" in message:
            member.port = message["ready"]
            self.introduce()
        elif "saved" in message:
            member.saved = message["saved"]
            self.complete_checkpoint()
        elif "finished" in message:
            member.said, member.finished = message["finished"], True
            self.results.add(member.name, message["result"])
            self.complete_checkpoint()
        elif "failed" in message:
            member.failed = message
        elif "lost" in message:
            member.lost = message["lost"]
        else:
            member.said = message

    def introduce(self) -> None:
        """Once all are there, each learns where those are to whom it speaks."""
        ports = {name: member.port for name, member in self.members.items()}
        if None in ports.values():
            return
        self.since = time.monotonic()
        for name, member in self.members.items():
            to = [port["worker"] for port in self.workers[name]["outputs"] if port["type"] == "tcp"]
            member.line.say(ports={other: ports[other] for other in to if other in ports})

    def bury(self, member: Member) -> None:
        """A process has ended: as it should, or as it has said, or by what somebody did to it."""
        while self.hear_last(member):
            pass
        code = self.close(member)
        if (member.finished and code == 0) or member.failed or member.lost:
            return
        how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        raise _Again(f"{member.name} died ({how})")

    def hear_last(self, member: Member) -> bool:
        messages = member.line.hear()
        for message in messages or ():
            self.heed(member, message)
        return bool(messages)

    def judge(self) -> None:
        """What raised counts before who died, and that before who only lost a peer, whichever is heard of first."""
        troubled = [member for member in self.members.values() if member.failed or member.lost]
        if not troubled:
            return
        for member in self.members.values():
            while not member.closed and self.hear_last(member):
                pass
        for member in self.members.values():
            if member.failed:
                raise JobFailed(f"{member.name} raised {member.failed['failed']}", member.name, member.failed["trace"])
        self.look_for_dead()
        raise _Again(f"{troubled[0].name}: {troubled[0].lost}")

    def look_for_dead(self) -> None:
        """A process's streams end a moment before it does."""
        end = time.monotonic() + MOMENT
        while (left := end - time.monotonic()) > 0:
            open_ones = {member.pidfd: member for member in self.members.values() if not member.closed}
            for pidfd in select.select(open_ones, [], [], left)[0]:
                self.bury(open_ones[pidfd])

    # Checkpoints.

    def begin_checkpoint(self) -> None:
        now = time.monotonic()
        due = now - self.since >= self.settings.every and not self.pending
        if due and all(member.port is not None for member in self.members.values()):
            self.pending = self.checkpoint + 1
            for member in self.members.values():
                if not member.finished:
                    member.line.say(checkpoint=self.pending)

    def complete_checkpoint(self) -> None:
        members = self.members.values()
        if not self.pending or not all(member.finished or member.saved == self.pending for member in members):
            return
        saved = [member.name for member in members if member.saved == self.pending]
        finished = [name for name in self.workers if name not in saved]
        self.results.save()
        self.checkpoints.complete(self.pending, saved, finished)
        self.checkpoint, self.pending, self.since = self.pending, 0, time.monotonic()
        self.report.checkpoints += 1

    # The line that says how far it is.

    def show(self) -> None:
        now = time.monotonic()
        if not self.shows() or now < self.shown + REPAINT:
            return
        self.shown = now
        made = sum(member.said["made"] for member in self.sources() if member.said)
        finished = len(self.done) + sum(member.finished for member in self.members.values())
        width = shutil.get_terminal_size().columns
        seconds = now - self.began
        line = self.progress.line(seconds, made, finished, len(self.workers), width)
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def sources(self) -> Iterator[Member]:
        return (member for member in self.members.values() if not self.stages[member.name].before)

    def shows(self) -> bool:
        return sys.stderr.isatty() if self.settings.progress is None else self.settings.progress

    def clear_line(self) -> None:
        if self.shows():
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
