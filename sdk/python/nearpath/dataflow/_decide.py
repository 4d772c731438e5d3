"""One attempt at a job, as a machine: what workers say goes in, what to do comes out. Time is an argument."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ._growing import Growth

# What is said in either direction: the whole state of whoever says it, so that the last one heard is enough.
Word: TypeAlias = dict[str, Any]
# A worker's streams end a moment before its end is known: who lost a peer waits so long for a reason.
MOMENT = 0.3


@dataclass(frozen=True)
class Raised:
    """A worker's code raised: no second try can help."""

    worker: str
    why: str
    trace: str


@dataclass(frozen=True)
class Again:
    """Back to the last checkpoint; `anew` must be started once more, whether or not they run."""

    why: str
    anew: frozenset[str] = frozenset()
    is_death: bool = True
    is_slow: bool = False


@dataclass(frozen=True)
class Through:
    """All is done."""


Verdict: TypeAlias = Raised | Again | Through


@dataclass
class Seen:
    """One worker in this attempt, as far as the job knows."""

    name: str
    word: Word = field(default_factory=dict)
    ended: str | None = None

    @property
    def ready(self) -> bool:
        return bool(self.word)

    @property
    def saved(self) -> int:
        return int(self.word.get("saved", 0))

    @property
    def finished(self) -> bool:
        return bool(self.word.get("finished"))

    @property
    def lost(self) -> str | None:
        return self.word.get("lost")

    @property
    def report(self) -> dict[str, Any] | None:
        return self.word.get("report")

    @property
    def died(self) -> bool:
        """Ended without having said why."""
        return self.ended is not None and not (self.finished or self.lost or self.word.get("failed"))


class Attempt:
    """From a checkpoint to the end, or to whatever comes between."""

    def __init__(
        self,
        number: int,
        checkpoint: int,
        done: Iterable[str],
        names: Iterable[str],
        now: float,
        growth: "Growth | None" = None,
        is_held: bool = False,
    ) -> None:
        self.number, self.checkpoint, self.done = number, checkpoint, frozenset(done)
        self.seen = {name: Seen(name) for name in names if name not in self.done}
        self.pending, self.since = 0, now
        self.is_held = is_held  # workers are not told to begin before all have been heard
        self._troubled: float | None = None
        self.growth, self._were_ready = growth, False

    def hear(self, name: str, word: Word, now: float) -> None:
        """What it says of another attempt is not of this one."""
        seen = self.seen.get(name)
        if seen is None or word.get("attempt") != self.number:
            if seen and seen.ready and word.get("attempt") == 0:  # one that has heard nothing yet: places may start one twice
                seen.ended = seen.ended or "another start of it has taken its place"
            return
        if not seen.word and not self.introduced:
            self.since = now  # checkpoints are counted from when all are there
        seen.word = word
        if self.growth:
            self.growth.hear(name, word)

    def bury(self, name: str, how: str) -> None:
        if name in self.seen:
            self.seen[name].ended = how

    def gather(self, here: Collection[str]) -> dict[str, bool]:
        """`here`: who has been heard since it was started. Once all have, they may begin, and nobody is held any more: whoever calls
        somebody who is not there is in the way of those who come. Of those who are not through: whether each has said all that it can
        have said by now."""
        self.is_held = self.is_held and not all(name in here for name in self.seen)
        return {name: seen.ready or (self.is_held and name in here) for name, seen in self.seen.items() if not seen.finished}

    @property
    def all_ready(self) -> bool:
        return all(seen.ready for seen in self.seen.values())

    @property
    def introduced(self) -> bool:
        """Whether all are there that were to begin together."""
        self._were_ready = self._were_ready or self.all_ready
        return self._were_ready

    def stand(self) -> tuple[bool, int, int, int]:
        """Whether it has begun, how many take part, how many are through, and what is said of those that start."""
        ready, finished = sum(seen.ready for seen in self.seen.values()), sum(seen.finished for seen in self.seen.values())
        return self.is_held, ready, finished, self.growth.version if self.growth else 0

    # Workers that start while the others run.

    def grow(self) -> list[str]:
        """Who is to be started now, and is one of them from now on."""
        if self.growth is None or not self.introduced:
            return []
        grown = self.growth.look(may_change=not self.pending and self._troubled is None)
        names = [name for name in grown if name not in self.seen]
        self.seen |= {name: Seen(name) for name in names}
        return names

    def grown(self, name: str) -> Word:
        """What a worker is told of those that start."""
        return {"grow": self.growth.word(name, lambda other: self.seen[other].ready)} if self.growth else {}

    def verdict(self, now: float) -> Verdict | None:
        """What raised counts before who died, and that before who only lost a peer, whichever is heard of first."""
        for seen in self.seen.values():
            if failed := seen.word.get("failed"):
                return Raised(seen.name, failed["why"], failed["trace"])
        if dead := [seen for seen in self.seen.values() if seen.died]:
            others = f", and {len(dead) - 1} more" if len(dead) > 1 else ""
            return Again(f"{dead[0].name} died ({dead[0].ended or 'it ended before it was through'}){others}", frozenset(seen.name for seen in dead))
        if all(seen.finished for seen in self.seen.values()):
            return Through()
        return self._troubles(now)

    def _troubles(self, now: float) -> Again | None:
        lost = next((seen for seen in self.seen.values() if seen.lost), None)
        if lost is None:
            return None
        self._troubled = now if self._troubled is None else self._troubled
        return Again(f"{lost.name}: {lost.lost}") if now - self._troubled >= MOMENT else None

    # Checkpoints.

    def begin(self, now: float, every: float) -> bool:
        """Whether a checkpoint begins now: all are there, and the last one is so long ago."""
        if self.pending or now - self.since < every or not self.all_ready or self._troubled is not None:
            return False
        if self.growth and self.growth.holds:
            return False
        self.pending = self.checkpoint + 1
        return True

    def complete(self) -> tuple[dict[str, str], list[str]] | None:
        """Who took part in the checkpoint (and the mark of what each wrote) and who was through by then, once all have written theirs."""
        if not self.pending or not all(seen.finished or seen.saved == self.pending for seen in self.seen.values()):
            return None
        saved = {seen.name: str(seen.word["mark"]) for seen in self.seen.values() if seen.saved == self.pending}
        through = [seen.name for seen in self.seen.values() if seen.saved != self.pending]
        return saved, sorted(self.done.union(through))

    def completed(self, now: float) -> None:
        """It is in the store."""
        self.checkpoint, self.pending, self.since = self.pending, 0, now
