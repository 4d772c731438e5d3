"""Finds workers that make no progress although they are alive. Time is an argument.

A stall is no death: code of the user may work for minutes on one item. A stall is reported once in an attempt, and counts as a death
only beyond a limit of the user.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ._attempt import ControlMessage

# After a longer pause between two checks, s, the job itself was stopped.
MAX_CHECK_INTERVAL = 5.0


def progress_mark(message: ControlMessage) -> object:
    """Returns a value that changes with each item, batch, wait and checkpoint of a worker."""
    report: Mapping[str, Any] = message.get("report") or {}
    return message.get("saved"), report.get("progress")


@dataclass(frozen=True)
class Stall:
    """A worker without progress for some seconds."""

    name: str
    seconds: float
    is_death: bool  # beyond the limit


@dataclass
class _Progress:
    mark: object
    since: float
    is_reported: bool = False


class Stalls:
    """`report_timeout` and `stall_timeout` bound the time without progress before a report and before a death, in s."""

    def __init__(self, report_timeout: float, stall_timeout: float) -> None:
        self._report_timeout, self._stall_timeout, self._checked_at = report_timeout, stall_timeout, 0.0
        self._workers: dict[str, _Progress] = {}

    def begin(self) -> None:
        """Begins an attempt."""
        self._workers.clear()

    def record(self, name: str, mark: object, now: float) -> None:
        """Takes the mark of a worker's last message."""
        if (worker := self._workers.get(name)) and worker.mark != mark:
            worker.mark, worker.since = mark, now

    def find(self, working: Collection[str], now: float) -> list[Stall]:
        """Returns stalls to report and deaths. `working` has the workers that may make progress now."""
        since, self._checked_at = now - self._checked_at, now
        self._workers = {name: self._workers.get(name) or _Progress(None, now) for name in working}
        if since > MAX_CHECK_INTERVAL:
            for worker in self._workers.values():
                worker.since = now
        return [stall for name, worker in self._workers.items() if (stall := self._check(name, worker, now - worker.since))]

    def _check(self, name: str, worker: _Progress, seconds: float) -> Stall | None:
        is_death, is_new = seconds >= self._stall_timeout, seconds >= self._report_timeout and not worker.is_reported
        worker.is_reported = worker.is_reported or is_death or is_new
        return Stall(name, seconds, is_death) if is_death or is_new else None
