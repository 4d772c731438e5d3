"""A job's terms: what it is asked for, and what comes of it."""

from dataclasses import dataclass
from typing import Any

from ._report import Report


class JobFailed(Exception):
    """A job that cannot go on. `worker` says whose doing it is, where it is one's, and `trace` where its code raised."""

    def __init__(self, why: str, worker: str | None = None, trace: str | None = None) -> None:
        super().__init__(why if trace is None else f"{why}\n\n{trace}")
        self.worker, self.trace = worker, trace


@dataclass
class Job:
    """A job that is through."""

    results: list[Any]
    report: Report


@dataclass
class Settings:
    """What `run` was asked for; its documentation says what each means."""

    folder: str | None
    every: float
    retries: int | None
    window: int
    spill: int
    patience: float
    fan_in: int | None
    progress: bool | None
    checkpoints: str | None = None
    silence: float = 10.0
    stragglers: bool = True

    def bound(self, workers: int) -> int:
        """How many deaths a job of so many workers may have: some, and one in ten."""
        return 3 + workers // 10 if self.retries is None else self.retries
