"""Who is taken for dead though nobody says that it ended. No clock: time is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass

# Longer between two looks: the job itself stood still, and knows nothing about the others.
STOOD_STILL = 5.0
# Words come every second; who has not spoken for so long does not speak now.
SPEAKS = 3.0


@dataclass
class _Watched:
    heard: float | None = None  # since it was started
    waited: float = 0.0  # for its word on this attempt
    silent: float = 0.0  # while most others spoke
    alone: float = 0.0  # whoever spoke


class Watch:
    """`patience`: seconds for a first word, in each attempt. `silence`: seconds without a word while most others speak."""

    def __init__(self, patience: float, silence: float) -> None:
        self._patience, self._silence, self._looked = patience, silence, 0.0
        self._watched: dict[str, _Watched] = {}

    def heard(self, name: str, now: float) -> None:
        watched = self._watched.setdefault(name, _Watched())
        watched.heard, watched.silent, watched.alone = now, 0.0, 0.0

    def forget(self, name: str) -> None:
        self._watched.pop(name, None)

    def begin(self) -> None:
        """An attempt: each is to say that it takes part."""
        for watched in self._watched.values():
            watched.waited = 0.0

    def look(self, ready: Mapping[str, bool], hears: bool, now: float) -> dict[str, str]:
        """Of those who should speak (and whether each takes part in this attempt): who is dead, and why one thinks so. While the
        job itself has no line (`hears` is false) nobody is."""
        since, self._looked = now - self._looked, now
        if not hears or since > STOOD_STILL:
            return {}
        speaking = sum(self._speaks(name, now) for name in ready)
        told: dict[str, str] = {}
        for name, is_ready in ready.items():
            others, others_speak = len(ready) - 1, speaking - self._speaks(name, now)
            if why := self._count(name, is_ready, since, others > 0 and 2 * others_speak >= others):
                told[name] = why
        return told

    def _speaks(self, name: str, now: float) -> bool:
        heard = self._watched[name].heard if name in self._watched else None
        return heard is not None and now - heard < SPEAKS

    def _count(self, name: str, is_ready: bool, since: float, others_speak: bool) -> str | None:
        watched = self._watched.setdefault(name, _Watched())
        watched.waited += 0.0 if is_ready else since
        if watched.waited >= self._patience:
            return f"no word from it within {self._patience:g} s"
        if watched.heard is None:
            return None
        watched.alone += since
        watched.silent += since if others_speak else 0.0
        if watched.silent >= self._silence or watched.alone >= self._patience:
            return f"silent for {watched.alone:.0f} s"
        return None
