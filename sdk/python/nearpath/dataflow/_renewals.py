"""Whom a job starts anew though they live: whose time at their place is nearly up, and who is too slow. No clock: time is an
argument.

Each is preceded by a checkpoint, so that little is done twice.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ._decide import Again, Attempt
from ._stragglers import Sample, Stragglers

# A straggler has to work through what waits before it until it comes to the checkpoint's barrier. The job waits as long for that as
# it would lose by going back to the last one, and this long at least.
LEAST = 5.0


def margin(limit: float) -> float:
    """Seconds before the end of a start's time at which it is replaced: a checkpoint must fit in."""
    return min(limit / 3, max(30.0, limit / 10))


@dataclass(frozen=True)
class Life:
    """Of one start: when it began, and when its place will end it."""

    begun: float
    end: float = math.inf

    def is_up(self, now: float) -> bool:
        return now >= self.end - margin(self.end - self.begun)

    def is_half_over(self, now: float) -> bool:
        return now >= (self.begun + self.end) / 2


@dataclass(frozen=True)
class Wanted:
    """A renewal that waits for a checkpoint."""

    names: frozenset[str]
    why: str
    is_slow: bool
    since: float
    checkpoint: int  # the last one, then
    loss: float  # seconds since that one


class Renewals:
    """Of a whole job. `stages`: each worker's; None: stragglers are let be."""

    def __init__(self, stages: Mapping[str, str] | None) -> None:
        self._stragglers = None if stages is None else Stragglers(stages)
        self._rerun: set[str] = set()
        self.is_vain = True  # nothing new has been made in this attempt
        self.wanted: Wanted | None = None

    def begin(self) -> None:
        """An attempt."""
        self.wanted, self.is_vain = None, True
        if self._stragglers:
            self._stragglers.begin()

    def note(self, name: str, report: Mapping[str, float], is_through: bool, now: float) -> None:
        """What a worker says of itself."""
        self.is_vain = self.is_vain and not report.get("items") and not report.get("work")
        if self._stragglers and "working" in report:
            sample = Sample(now, report["work"], report["working"], int(report["steps"]))
            self._stragglers.note(name, sample, bool(report["finishing"]), is_through)

    def look(self, attempt: Attempt, lives: Mapping[str, Life], now: float) -> Again | None:
        """`lives`: of those who are not through. A renewal that has its checkpoint."""
        if self.wanted is None:
            self.wanted = self._up(attempt, lives, now) or self._slow(attempt, now)
        if self.wanted is None or not self._may(self.wanted, attempt, now):
            return None
        if self.wanted.is_slow:
            self._rerun |= self.wanted.names
        return Again(self.wanted.why, self.wanted.names, is_death=False, is_slow=self.wanted.is_slow)

    def _may(self, wanted: Wanted, attempt: Attempt, now: float) -> bool:
        is_late = wanted.is_slow and now - wanted.since >= max(LEAST, wanted.loss)
        return attempt.checkpoint > wanted.checkpoint or is_late

    def _up(self, attempt: Attempt, lives: Mapping[str, Life], now: float) -> Wanted | None:
        """Those whose life is half over go with the first: they would be the next."""
        if not any(life.is_up(now) for life in lives.values()):
            return None
        names = frozenset(name for name, life in lives.items() if life.is_half_over(now))
        return Wanted(names, _told(names, "turned over before its place ends it"), False, now, attempt.checkpoint, now - attempt.since)

    def _slow(self, attempt: Attempt, now: float) -> Wanted | None:
        slow = frozenset(self._stragglers.find(now)) - self._rerun if self._stragglers else frozenset()
        if not slow:
            return None
        return Wanted(slow, _told(slow, "works slower than its stage"), True, now, attempt.checkpoint, now - attempt.since)


def _told(names: frozenset[str], what: str) -> str:
    first, *others = sorted(names)
    return f"{first} {what}" + (f", and {len(others)} more" if others else "")
