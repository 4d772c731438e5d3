"""The job as users of nearpath.dataflow write it: reducers read from mappers, directly."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import account
import work
from forks import Forks
from work import Job
from nearpath import dataflow as flow
from nearpath.dataflow import arrow, remote_worker


class Noted(arrow.ArrowWorker):
    """Records its cost after its work, before the last acknowledgements."""

    def __init__(self, job: Job) -> None:
        self._job, self._began = job, account.began()

    def result(self) -> tuple[str, str] | None:
        account.note(self._job.out, account.spent(self.name, self._began))
        return None


class Mapper(Noted):

    def input(self, port: flow.Port) -> Iterator[work.Batch]:
        return work.mapped(self._job, self.number)


class Reducer(Noted):
    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._sums = arrow.reduce_by_key("sum").worker()

    def process(self, items: Iterable[work.Batch]) -> Iterable[Any]:
        return self._sums.process(items)

    def snapshot(self) -> Any:
        return self._sums.snapshot()

    def restore(self, kept: Any) -> None:
        self._sums.restore(kept)

    def finish(self) -> Iterable[Any]:
        work.write(self._job, self.number, self._sums.finish())
        return ()


def stages(**values: Any) -> flow.Stage:
    """Builds the job; its arguments are those of `Job`."""
    job = Job(**values)
    mappers = flow.stage(lambda: Mapper(job), job.mappers, "map")
    return mappers >> flow.stage(lambda: Reducer(job), job.reducers, "reduce", reads="by-key")


class Warm(flow.Place):
    """Starts workers as forks of this process, on the available machines."""

    name = "warm"

    def __init__(self, forks: Forks) -> None:
        self._forks = forks

    def start(self, worker: str, orders: bytes) -> "Child":
        return Child(self._forks.start(worker, lambda: remote_worker.run(orders)))


class Child(flow.Started):
    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._how: str | None = None

    def ended(self) -> str | None:
        if self._how is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if pid else None
            self._how = None if code is None else f"exit code {code}" if code else ""
        return self._how

    def stop(self) -> None:
        if self.ended() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._how = "stopped"


def run(job: Job, **settings: Any) -> None:
    """Runs the job, on this machine without a place."""
    done = flow.run(stages, arguments=asdict(job), progress=False, **settings)
    for why in done.report.restarts:
        print(f"started again: {why}", file=sys.stderr, flush=True)
    print(done.report.paths, file=sys.stderr, flush=True)
