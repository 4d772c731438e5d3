"""Who works so slowly that another start would be through sooner. No clock: time is an argument.

A rate is work (bytes processed, or items made by who reads nothing) for each second in which a worker worked: who waits for input or
for room is not slow, and who has more to do than others is not, either.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# A rate is taken over so many seconds at least, and over four of the batches that mates process.
WINDOW, BATCHES = 5.0, 4
# So long a worker must be slow.
HOLDS = 5.0
# Fewer workers in a stage tell nothing of each other.
MATES = 3
# Slower than a third of the median; where all others are through, than half.
SLOW, LAST = 1 / 3, 1 / 2
LONGEST = 300
# Seconds between two samples, and between two looks.
EVERY = 0.5


@dataclass(frozen=True)
class Sample:
    """How far a worker was."""

    at: float
    work: float
    working: float  # seconds
    steps: int  # batches, or looks where there are none

    def rate(self, before: "Sample | None" = None) -> float | None:
        work, working = self.work, self.working
        if before:
            work, working = work - before.work, working - before.working
        return work / working if working > 0 else None


START = Sample(0.0, 0.0, 0.0, 0)


@dataclass
class _Pace:
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=LONGEST))
    is_through: bool = False
    is_finishing: bool = False
    slow_since: float | None = None

    @property
    def last(self) -> Sample:
        return self.samples[-1] if self.samples else START

    def before(self, at: float) -> Sample | None:
        """The last one from then or before, if it goes back so far."""
        return next((sample for sample in reversed(self.samples) if sample.at <= at), None)

    def recent(self, at: float) -> float | None:
        """Its rate since then; where it has done nothing since, over all."""
        return self.last.rate(self.before(at)) or self.last.rate()


class Stragglers:
    """Of one attempt. `stages`: each worker's stage."""

    def __init__(self, stages: Mapping[str, str]) -> None:
        self._stages, self._looked = stages, -math.inf
        self._paces: dict[str, dict[str, _Pace]] = {}

    def begin(self) -> None:
        self._paces.clear()

    def note(self, name: str, sample: Sample, is_finishing: bool, is_through: bool) -> None:
        pace = self._paces.setdefault(self._stages[name], {}).setdefault(name, _Pace())
        pace.is_through, pace.is_finishing = is_through, is_finishing
        if not pace.samples or sample.at >= pace.last.at + EVERY:
            pace.samples.append(sample)

    def find(self, now: float) -> list[str]:
        """Who has been slow for long enough."""
        if now - self._looked < EVERY:
            return []
        self._looked = now
        return [name for paces in self._paces.values() if len(paces) >= MATES for name in _slow_ones(paces, now)]


def _slow_ones(paces: Mapping[str, _Pace], now: float) -> list[str]:
    going = [name for name, pace in paces.items() if not pace.is_through]
    slow = _last_one(paces, going) if len(going) == 1 else _slower_ones(paces, going, now)
    for name, pace in paces.items():
        pace.slow_since = (now if pace.slow_since is None else pace.slow_since) if name in slow else None
    return [name for name in slow if now - (paces[name].slow_since or now) >= HOLDS]


def _last_one(paces: Mapping[str, _Pace], going: Sequence[str]) -> list[str]:
    """All others are through, and it has worked for twice as long, at half their rate."""
    own, mates = paces[going[0]], [pace for pace in paces.values() if pace.is_through]
    usual, rate = _median([mate.last.rate() for mate in mates]), own.last.rate()
    is_long = own.last.working > 2 * statistics.median(mate.last.working for mate in mates) + WINDOW
    return list(going) if is_long and usual is not None and rate is not None and rate < LAST * usual else []


def _slower_ones(paces: Mapping[str, _Pace], going: Sequence[str], now: float) -> list[str]:
    """Over a time in which mates have processed some batches."""
    batch = _median([pace.last.working / pace.last.steps for pace in paces.values() if pace.last.steps])
    since = now - max(WINDOW, BATCHES * (batch or 0.0))
    usual = _median([pace.recent(since) for pace in paces.values() if pace.last.steps])
    if batch is None or usual is None:
        return []
    return [name for name in going if _is_slower(paces[name], usual, since, now)]


def _is_slower(pace: _Pace, usual: float, since: float, now: float) -> bool:
    """It has worked for most of that time, and done a third of what is usual."""
    before = pace.before(since)
    if pace.is_finishing or before is None or pace.last.working - before.working < (now - since) / 2:
        return False
    return (pace.last.rate(before) or 0.0) < SLOW * usual


def _median(values: Sequence[float | None]) -> float | None:
    """Of two at least."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if len(known) >= MATES - 1 else None
