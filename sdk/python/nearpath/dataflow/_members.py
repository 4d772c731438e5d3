"""A job's workers as it deals with them, wherever they run."""

import abc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._decide import Attempt, Word


@dataclass(frozen=True)
class Plan:
    """What the job has decided about one worker in one attempt. Plain values only: it goes to other machines."""

    part: Mapping[str, Any]  # its own entry of the topology
    number: int  # in its stage
    of: int
    attempt: int
    checkpoint: int  # to go on from; 0: from the beginning
    ended: tuple[str, ...]  # those of its inputs that had ended by then: nothing comes from them any more
    folder: str | None  # for what it makes; None: one of its own
    store: str | None  # where checkpoints are; None: there are none
    window: int
    spill: int
    patience: float
    owner: str | None = None  # who has asked for it while the job runs, and is all that it reads


class Member(abc.ABC):
    """One start of one worker."""

    memory: float | None = None  # GB that it is paid for; None: what its process used
    end = math.inf  # when its place ends it, by the monotonic clock
    used = 0.0  # GB, at most, as far as it has said
    is_heard = False  # it has said anything
    is_leaving = False  # it was told to end
    is_settled = False  # whether it is in the report

    def __init__(self, name: str) -> None:
        self.name, self.begun = name, time.monotonic()

    @abc.abstractmethod
    def say(self, word: Word) -> None:
        """May be lost where the crew repeats."""

    @abc.abstractmethod
    def heard(self) -> list[Word]:
        """What it has said since the last time. Does not wait."""

    @abc.abstractmethod
    def ended(self) -> str | None:
        """None while it runs; else how it ended; "" when it ended well."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends it, whatever it does. May be called again."""


class Crew(abc.ABC):
    """Makes members, and waits for news of them."""

    place = "local"  # for reports
    stays = False  # whether members go on in their processes when the job goes back to a checkpoint
    repeat: float | None = None  # seconds after which a word is said once more; None: none is ever lost

    @abc.abstractmethod
    def start(self, plan: Plan) -> Member:
        """A worker that begins with this plan."""

    @abc.abstractmethod
    def word(self, attempt: Attempt, plan: Plan) -> Word | None:
        """What a worker is to know now."""

    @abc.abstractmethod
    def news(self, seconds: float) -> list[Member]:
        """Those of whom there may be something to hear, as soon as there is one, or nobody after that time."""

    def hears(self) -> bool:
        """Whether words come through at all."""
        return True

    def is_here(self, name: str) -> bool:
        """Whether that worker uses the job's folder."""
        return True

    def dismiss(self, members: Sequence[Member]) -> None:
        """Ends them."""
        for member in members:
            member.stop()

    @abc.abstractmethod
    def close(self) -> None:
        """After all members are stopped."""
