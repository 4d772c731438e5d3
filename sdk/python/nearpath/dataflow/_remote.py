"""Workers that places have started, heard and told through the rendezvous."""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _native, _temporary
from ._code import Code
from ._decide import Attempt, Word
from ._graph import Stage
from ._members import Crew, Member, Plan
from ._places import Place, Started
from ._processes import Processes
from ._sealed import Seal, new_key
from .elsewhere import LONGEST

LEADER = "leader"
# Certificates and tickets of a start are good for so long; it is replaced before they end.
WEEK = 7 * 24 * 3600.0
# The job's own are good for longer than jobs run: they stay in this process, which has the key that makes them.
YEAR = 365 * 24 * 3600.0
# The rendezvous takes 200 messages a second from the leader; half of them say what has been said before.
MESSAGES = 100
# A word is said once more so often in the time after which who is silent is taken for dead: what was lost is healed by the next.
OF_SILENCE = 10
# Who is told to end has so many seconds for it, then its place ends it.
FAREWELL = 1.0


@dataclass(frozen=True)
class Rendezvous:
    """Where workers meet, and what lets them in."""

    place: str
    key: bytes = field(repr=False)
    trust: str | None = None  # certificates of authorities, as PEM; None: the system's

    def ticket(self, job: str, worker: str, leader: bool = False) -> dict[str, Any]:
        ticket = _native.ticket(self.key, job, worker, leader, YEAR if leader else WEEK)
        return {"place": self.place, "ticket": ticket, "trust": self.trust}


class Remote(Member):
    """One start of one worker at a place."""

    def __init__(self, name: str, key: str, place: Place, started: Started, say: Callable[[str, str], None]) -> None:
        super().__init__(name)
        self.memory, self._seal = place.memory, Seal.of_job(key)
        self.end = self.begun + min(place.limit, WEEK)
        self._started, self._say, self._words = started, say, list[Word]()
        self._how: str | None = None

    def say(self, word: Word) -> None:
        self._say(self.name, self._seal.close(word))

    def hear(self, text: str) -> bool:
        """Whether this start has said it; not an older one, nor somebody between."""
        if (word := self._seal.open(text)) is None:
            return False
        self._words.append(word)
        self.is_heard = True
        if (left := word.get("left")) is not None:
            self.end = min(self.end, time.monotonic() + left)
        return True

    def heard(self) -> list[Word]:
        words, self._words = self._words, []
        return words

    def ended(self) -> str | None:
        if self._how is None:
            self._how = self._started.ended()
        return self._how

    def wait(self, seconds: float) -> None:
        """Until it has ended, or that time is up."""
        if self.ended() is None:
            self._how = self._started.wait(max(0.0, seconds))

    def stop(self) -> None:
        self._started.stop()


class Remotes(Crew):
    """All workers of a job, each at its place."""

    stays = True

    def __init__(
        self,
        code: Code,
        mark: str,
        stages: Mapping[str, Stage],
        place: Place,
        rendezvous: Rendezvous,
        patience: float,
        silence: float,
    ) -> None:
        self.place = place.name
        self._here = {name for name, stage in stages.items() if stage.where == "here"}
        here = Processes()
        places = {name: here if name in self._here else place for name in stages}
        self._code, self._places, self._rendezvous, self._patience = {**code.values(), "mark": mark}, places, rendezvous, patience
        self._repeat = silence / OF_SILENCE
        self.repeat = max(self._repeat, len(places) / MESSAGES)
        self.job = f"{code.name.lower().replace('_', '-')[:50]}-{secrets.token_hex(4)}"
        self._members: dict[str, Remote] = {}
        self._authority = _native.Authority(self.job, YEAR)
        way = rendezvous.ticket(self.job, LEADER, leader=True)
        self._line = _native.Line(way["place"], way["ticket"], way["trust"])
        try:
            if not self._line.wait(patience):
                raise ConnectionError(f"no rendezvous at {rendezvous.place} within {patience:g} s: start one (nearpath rendezvous)")
        except BaseException:
            self.close()
            raise

    def hears(self) -> bool:
        with contextlib.suppress(ConnectionError):  # it is over: that is heard where one listens
            return self._line.wait(0.0)
        return False

    def start(self, plan: Plan) -> Remote:
        name, key = plan.part["name"], new_key()
        place = self._places[name]
        started = place.start(name, self._orders(name, key))
        self._members[name] = Remote(name, key, place, started, self._say)
        return self._members[name]

    def _orders(self, name: str, key: str) -> bytes:
        orders = {
            "version": 1,
            "job": self.job,
            "worker": name,
            "key": key,
            "code": self._code,
            "rendezvous": self._rendezvous.ticket(self.job, name),
            "identity": json.loads(self._authority.identity(name, WEEK)),
            "leader": LEADER,
            "patience": self._patience,
            "repeat": self._repeat,
        }
        text = json.dumps(orders).encode()
        if len(text) > LONGEST:
            told = "give the job shorter arguments, or a `trust` with fewer certificates"
            raise ValueError(f"orders of {len(text)} bytes, {LONGEST} is the limit: {told}")
        return text

    def word(self, attempt: Attempt, plan: Plan) -> Word | None:
        """All that is decided, until the worker says that it takes part; then what changes. Nobody begins before all are there: who
        calls somebody who is not is in the way of those who come."""
        seen = attempt.seen.get(plan.part["name"])
        if seen is None or seen.finished:
            return {"end": True}
        if attempt.is_held:
            return {"attempt": attempt.number}
        if not seen.ready:
            return {"attempt": attempt.number, "plan": vars(plan)}
        return {"attempt": attempt.number, "cut": attempt.pending, **attempt.grown(seen.name)}

    def _say(self, name: str, text: str) -> None:
        with contextlib.suppress(ConnectionError):  # it is over: that is heard where one listens
            self._line.say(name, text)

    def news(self, seconds: float) -> list[Member]:
        told: dict[str, Remote] = {}
        for sender, text in self._line.hear(seconds):
            member = self._members.get(sender)
            if member and member.hear(text):
                told[sender] = member
        told |= {name: member for name, member in self._members.items() if member.ended() is not None}
        return list(told.values())

    def is_here(self, name: str) -> bool:
        return name in self._here

    def dismiss(self, members: Sequence[Member]) -> None:
        """They are told to end, and have a moment for it."""
        end = time.monotonic() + FAREWELL
        for member in members:
            member.say({"end": True})
        for member in members:
            self._members[member.name].wait(end - time.monotonic())
        for member in members:
            member.stop()

    def close(self) -> None:
        self._line.close()
        for place in set(self._places.values()):
            place.close()
        _temporary.sweep(_temporary.WORKER)  # of those that were killed on this machine
