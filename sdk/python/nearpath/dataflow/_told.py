"""What workers have been told, so that each hears what is new, and once more what may have been lost. No clock: time is an argument."""

from ._decide import Word

# So often a job looks for news, and for what is to be said once more.
TICK = 0.1


class Told:
    """`repeat`: seconds after which a word is said once more; None: none is ever lost."""

    def __init__(self, repeat: float | None) -> None:
        self._repeat, self._words = repeat, dict[str, tuple[Word, float]]()
        self._state: object = None
        self._looked = 0.0

    def may_be_new(self, state: object, now: float) -> bool:
        """Whether to look for words at all: `state` is all that they depend on, and there may be a thousand workers."""
        if state == self._state and (self._repeat is None or now < self._looked + TICK):
            return False
        self._state, self._looked = state, now
        return True

    def tells(self, name: str, word: Word, now: float) -> bool:
        """Whether to tell it that now; it is told, then."""
        if before := self._words.get(name):
            said, when = before
            if said == word and (self._repeat is None or now - when < self._repeat):
                return False
        self._words[name] = word, now
        return True

    def forget(self, name: str) -> None:
        """Who is started anew has heard nothing."""
        self._words.pop(name, None)
