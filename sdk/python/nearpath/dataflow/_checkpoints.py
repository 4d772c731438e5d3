"""Makes a job's checkpoints. A thread completes them, because workers need messages while a store is slow."""

import contextlib
import json
import threading
import warnings
from concurrent.futures import Future, wait
from types import TracebackType

from ._attempt import Restart, Attempt
from ._results import Results
from ._store import Store

# Seconds to wait for a completion. A local disk finishes within them.
COMPLETION_WAIT = 0.02
# Seconds that a failed or cancelled job waits for a checkpoint in progress.
CLOSE_GRACE = 2.0


class Checkpoints:
    """Manages the checkpoints of a job in its store, if it has one.

    A successful end of the context removes them. After a failure the next run resumes from the last one.
    """

    def __init__(self, store: Store | None, results: Results) -> None:
        self._store, self._results, self.made = store, results, 0
        self._completion: Future[None] | None = None

    def last(self) -> tuple[int, set[str], list[str]]:
        """Returns the last complete checkpoint's number, its workers and the finished workers."""
        with contextlib.suppress(ConnectionError):  # the store shows whether it is complete
            self._wait_completed()
        manifest = json.loads(self._store and self._store.latest() or '{"number": 0, "states": {}, "finished": []}')
        return int(manifest["number"]), set(manifest["states"]), manifest["finished"]

    def advance(self, attempt: Attempt, now: float, interval: float) -> Restart | None:
        """Begins a checkpoint when it is due, and completes it after all workers have saved their states."""
        if self._store is None:
            return None
        if self._completion is None:
            attempt.begin_checkpoint(now, interval)
            if (saved := attempt.saved_states()) is None:
                return None
            self._results.record(attempt)
            self._results.save()
            self._completion = _complete_in_thread(self._store, attempt.pending, *saved)
        return self._check_completion(attempt, now)

    def _check_completion(self, attempt: Attempt, now: float) -> Restart | None:
        if self._completion is None or not wait([self._completion], COMPLETION_WAIT).done:
            return None
        try:
            self._wait_completed()
        except ConnectionError as error:
            return Restart(f"checkpoint {attempt.pending} failed: {error}")
        attempt.record_checkpoint(now)
        return None

    def _wait_completed(self) -> None:
        """Waits for the completion in progress."""
        completion, self._completion = self._completion, None
        if completion is not None:
            completion.result()
            self.made += 1

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            wait([self._completion] if self._completion else [], CLOSE_GRACE)
            return
        try:
            self._wait_completed()
            if self._store is not None:
                self._store.clear()
        except OSError as failure:
            warnings.warn(f"the job has finished, but its checkpoints stay: {failure}", RuntimeWarning, stacklevel=2)


def _complete_in_thread(store: Store, number: int, states: dict[str, str], finished: list[str]) -> Future[None]:
    """Completes a checkpoint on a daemon thread, so an unreachable store does not delay the exit."""
    completion: Future[None] = Future()

    def complete() -> None:
        try:
            store.complete(number, states, finished)
        except BaseException as error:
            completion.set_exception(error)
        else:
            completion.set_result(None)

    threading.Thread(target=complete, name="checkpoint", daemon=True).start()
    return completion
