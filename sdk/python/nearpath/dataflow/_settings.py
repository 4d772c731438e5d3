"""A job's settings and result."""

import math
from dataclasses import dataclass
from typing import Any

from ._report import Report


class JobFailed(Exception):
    """Reports a failed job. `worker` names the cause's worker, and `trace` has its traceback."""

    def __init__(self, reason: str, worker: str | None = None, trace: str | None = None) -> None:
        super().__init__(reason if trace is None else f"{reason}\n\n{trace}")
        self.worker, self.trace = worker, trace


@dataclass
class Job:
    """A finished job."""

    results: list[Any]
    report: Report

    def __repr__(self) -> str:
        """Returns one line: a job may have millions of results."""
        return f"Job({len(self.results)} results in {self.report.seconds:.2f} s; see .results and .report)"

    def _repr_html_(self) -> str:
        return self.report._repr_html_()


@dataclass
class Settings:
    """The settings that `run` documents."""

    folder: str | None
    checkpoint_interval: float
    retries: int | None
    window: int
    spill: int
    contact_timeout: float
    fan_in: int | None
    progress: bool | None
    checkpoints: str | None = None
    silence_timeout: float = 10.0
    stragglers: bool = True
    stall_report_timeout: float = 30.0
    stall_timeout: float = math.inf

    def max_restarts(self, workers: int) -> int:
        """Returns the permitted restarts: `retries`, or 3 and one per ten workers."""
        return 3 + workers // 10 if self.retries is None else self.retries
