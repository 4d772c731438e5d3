"""Decides restarts of live workers: near their place's time limit, or too slow. Time is an argument.

Each is preceded by a checkpoint, so that little is done twice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ._attempt import Restart, Attempt
from ._stragglers import Sample, Stragglers

# A straggler processes its queued batches before the checkpoint's barrier. The job waits for that as long as a return to the last
# checkpoint would cost, and at least this many seconds.
MIN_BARRIER_GRACE = 5.0


def margin(limit: float) -> float:
    """Returns the seconds between a start's replacement and its limit, enough for a checkpoint."""
    return min(limit / 3, max(30.0, limit / 10))


@dataclass(frozen=True)
class StartLifetime:
    """The start time and the time limit of one start."""

    started_at: float
    ends_at: float = math.inf

    def is_expiring(self, now: float) -> bool:
        return now >= self.ends_at - margin(self.ends_at - self.started_at)

    def is_half_over(self, now: float) -> bool:
        return now >= (self.started_at + self.ends_at) / 2


@dataclass(frozen=True)
class PendingRenewal:
    """A renewal that waits for a checkpoint."""

    names: frozenset[str]
    why: str
    is_slow: bool
    since: float
    checkpoint: int  # the last checkpoint at that time
    replay_seconds: float  # seconds since that checkpoint


class Renewals:
    """Renewals of a job. `stages` maps workers to stages; None turns straggler detection off."""

    def __init__(self, stages: Mapping[str, str] | None) -> None:
        self._stragglers = None if stages is None else Stragglers(stages)
        self._restarted: set[str] = set()
        self.has_no_progress = True  # the attempt has made no new items
        self.pending: PendingRenewal | None = None

    def begin(self) -> None:
        """Begins an attempt."""
        self.pending, self.has_no_progress = None, True
        if self._stragglers:
            self._stragglers.begin()

    def record(self, name: str, report: Mapping[str, float], is_finished: bool, now: float) -> None:
        """Takes a worker's report."""
        self.has_no_progress = self.has_no_progress and not report.get("items") and not report.get("work")
        if self._stragglers and "working" in report:
            sample = Sample(now, report["work"], report["working"], int(report["steps"]))
            self._stragglers.record(name, sample, bool(report["finishing"]), is_finished)

    def find_due(self, attempt: Attempt, lifetimes: Mapping[str, StartLifetime], now: float) -> Restart | None:
        """Returns a renewal whose checkpoint is complete. `lifetimes` has the unfinished workers."""
        if self.pending is None:
            self.pending = self._find_expiring(attempt, lifetimes, now) or self._find_slow(attempt, now)
        if self.pending is None or not self._is_allowed(self.pending, attempt, now):
            return None
        if self.pending.is_slow:
            self._restarted |= self.pending.names
        return Restart(self.pending.why, self.pending.names, is_death=False, is_slow=self.pending.is_slow)

    def _is_allowed(self, pending: PendingRenewal, attempt: Attempt, now: float) -> bool:
        is_late = pending.is_slow and now - pending.since >= max(MIN_BARRIER_GRACE, pending.replay_seconds)
        return attempt.checkpoint > pending.checkpoint or is_late

    def _find_expiring(self, attempt: Attempt, lifetimes: Mapping[str, StartLifetime], now: float) -> PendingRenewal | None:
        """Finds expiring starts. Starts past half of their time are included, because they would be next."""
        if not any(lifetime.is_expiring(now) for lifetime in lifetimes.values()):
            return None
        names = frozenset(name for name, lifetime in lifetimes.items() if lifetime.is_half_over(now))
        return PendingRenewal(names, _describe(names, "renewed before its time limit"), False, now, attempt.checkpoint, now - attempt.since)

    def _find_slow(self, attempt: Attempt, now: float) -> PendingRenewal | None:
        slow = frozenset(self._stragglers.find(now)) - self._restarted if self._stragglers else frozenset()
        if not slow:
            return None
        return PendingRenewal(slow, _describe(slow, "works slower than its stage"), True, now, attempt.checkpoint, now - attempt.since)


def _describe(names: frozenset[str], reason: str) -> str:
    first, *others = sorted(names)
    return f"{first} {reason}" + (f", and {len(others)} more" if others else "")
