"""A job's checkpoints as its leader makes them. A store may be slow, and workers must hear of their job meanwhile: so they are
completed on a thread."""

import contextlib
import json
import threading
import warnings
from concurrent.futures import Future, wait
from types import TracebackType

from ._decide import Again, Attempt
from ._results import Results
from ._store import Store

# A disk is through by then: nobody has to come back for it.
MOMENT = 0.02
# Of a job that fails or is cancelled, a checkpoint that is being completed holds up the end for so long.
FAREWELL = 2.0


class Checkpoints:
    """In a store; or none, where there is no store. When its block ends well they go: the job is through. Else the next run goes on
    from the last."""

    def __init__(self, store: Store | None, results: Results) -> None:
        self._store, self._results, self.made = store, results, 0
        self._under_way: Future[None] | None = None

    def last(self) -> tuple[int, set[str], list[str]]:
        """The number of the last complete one, who took part in it, and who had finished by then."""
        with contextlib.suppress(ConnectionError):  # perhaps it is complete, perhaps not: the store knows
            self._settle()
        manifest = json.loads(self._store and self._store.latest() or '{"number": 0, "states": {}, "finished": []}')
        return int(manifest["number"]), set(manifest["states"]), manifest["finished"]

    def care(self, attempt: Attempt, now: float, every: float) -> Again | None:
        """Begins one when it is time, and completes it when all have written down what they know."""
        if self._store is None:
            return None
        if self._under_way is None:
            attempt.begin(now, every)
            if (parts := attempt.complete()) is None:
                return None
            self._results.note(attempt)
            self._results.save()
            self._under_way = _on_a_thread(self._store, attempt.pending, *parts)
        return self._look(attempt, now)

    def _look(self, attempt: Attempt, now: float) -> Again | None:
        if self._under_way is None or not wait([self._under_way], MOMENT).done:
            return None
        try:
            self._settle()
        except ConnectionError as error:
            return Again(f"checkpoint {attempt.pending} could not be completed: {error}")
        attempt.completed(now)
        return None

    def _settle(self) -> None:
        """After this, what the store has does not change by itself."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()
            self.made += 1

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            wait([self._under_way] if self._under_way else [], FAREWELL)
            return
        try:
            self._settle()
            if self._store is not None:
                self._store.clear()
        except OSError as left:
            warnings.warn(f"the job is through, and its checkpoints stay: {left}", RuntimeWarning, stacklevel=2)


def _on_a_thread(store: Store, number: int, states: dict[str, str], finished: list[str]) -> Future[None]:
    """The thread ends with its work: there may be a fork after it. A daemon: a store that does not answer holds up no exit."""
    under_way: Future[None] = Future()

    def complete() -> None:
        try:
            store.complete(number, states, finished)
        except BaseException as error:
            under_way.set_exception(error)
        else:
            under_way.set_result(None)

    threading.Thread(target=complete, name="checkpoint", daemon=True).start()
    return under_way
