"""Finds workers so slow that a new start would finish earlier. Time is an argument.

A rate is work (processed bytes, or items made by a source) per second of working time. Waiting for input or room does not reduce
it, and neither does more work than that of other workers.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# A rate covers at least this many seconds, and four batches of the stage's other workers.
RATE_WINDOW, MIN_BATCHES = 5.0, 4
# Seconds for which a worker must be slow.
SLOW_GRACE = 5.0
# Smaller stages give no usable median.
MIN_WORKERS = 3
# Shares of the median rate below which a worker is slow; LAST_WORKER_SHARE applies to the last one.
SLOW_SHARE, LAST_WORKER_SHARE = 1 / 3, 1 / 2
MAX_SAMPLES = 300
# Seconds between two samples and between two checks.
SAMPLE_INTERVAL = 0.5


@dataclass(frozen=True)
class Sample:
    """A worker's progress at one moment."""

    at: float
    work: float
    working: float  # seconds
    steps: int  # batches, or checks of a source

    def rate(self, before: "Sample | None" = None) -> float | None:
        work, working = self.work, self.working
        if before:
            work, working = work - before.work, working - before.working
        return work / working if working > 0 else None


START = Sample(0.0, 0.0, 0.0, 0)


@dataclass
class _Pace:
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    is_finished: bool = False
    is_finishing: bool = False
    slow_since: float | None = None

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else START

    def before(self, at: float) -> Sample | None:
        """Returns the last sample at or before `at`, if there is one."""
        return next((sample for sample in reversed(self.samples) if sample.at <= at), None)

    def recent(self, at: float) -> float | None:
        """Returns the rate since `at`, or the total rate if there was no work since."""
        return self.last.rate(self.before(at)) or self.last.rate()


class Stragglers:
    """Finds stragglers of one attempt. `stages` maps workers to stages."""

    def __init__(self, stages: Mapping[str, str]) -> None:
        self._stages, self._checked_at = stages, -math.inf
        self._paces: dict[str, dict[str, _Pace]] = {}

    def begin(self) -> None:
        self._paces.clear()

    def record(self, name: str, sample: Sample, is_finishing: bool, is_finished: bool) -> None:
        pace = self._paces.setdefault(self._stages[name], {}).setdefault(name, _Pace())
        pace.is_finished, pace.is_finishing = is_finished, is_finishing
        if not pace.samples or sample.at >= pace.last.at + SAMPLE_INTERVAL:
            pace.samples.append(sample)

    def find(self, now: float) -> list[str]:
        """Returns the workers that have been slow for SLOW_GRACE."""
        if now - self._checked_at < SAMPLE_INTERVAL:
            return []
        self._checked_at = now
        return [name for paces in self._paces.values() if len(paces) >= MIN_WORKERS for name in _find_slow(paces, now)]


def _find_slow(paces: Mapping[str, _Pace], now: float) -> list[str]:
    unfinished = [name for name, pace in paces.items() if not pace.is_finished]
    slow = _find_last(paces, unfinished) if len(unfinished) == 1 else _find_slower(paces, unfinished, now)
    for name, pace in paces.items():
        pace.slow_since = (now if pace.slow_since is None else pace.slow_since) if name in slow else None
    return [name for name in slow if now - (paces[name].slow_since or now) >= SLOW_GRACE]


def _find_last(paces: Mapping[str, _Pace], unfinished: Sequence[str]) -> list[str]:
    """Finds a last worker with over twice the median working time at under half of the median rate."""
    last, others = paces[unfinished[0]], [pace for pace in paces.values() if pace.is_finished]
    median_rate, rate = _median([other.last.rate() for other in others]), last.last.rate()
    is_long = last.last.working > 2 * statistics.median(other.last.working for other in others) + RATE_WINDOW
    return list(unfinished) if is_long and median_rate is not None and rate is not None and rate < LAST_WORKER_SHARE * median_rate else []


def _find_slower(paces: Mapping[str, _Pace], unfinished: Sequence[str], now: float) -> list[str]:
    """Finds slow workers over a window of several batches."""
    batch = _median([pace.last.working / pace.last.steps for pace in paces.values() if pace.last.steps])
    since = now - max(RATE_WINDOW, MIN_BATCHES * (batch or 0.0))
    median_rate = _median([pace.recent(since) for pace in paces.values() if pace.last.steps])
    if batch is None or median_rate is None:
        return []
    return [name for name in unfinished if _is_slower(paces[name], median_rate, since, now)]


def _is_slower(pace: _Pace, median_rate: float, since: float, now: float) -> bool:
    """Returns whether a worker was busy for half of the window at under a third of the median rate."""
    before = pace.before(since)
    if pace.is_finishing or before is None or pace.last.working - before.working < (now - since) / 2:
        return False
    return (pace.last.rate(before) or 0.0) < SLOW_SHARE * median_rate


def _median(values: Sequence[float | None]) -> float | None:
    """Returns the median of at least two known values."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) >= MIN_WORKERS - 1 else None
