"""Decides that silent workers are dead. Time is an argument."""

from collections.abc import Mapping
from dataclasses import dataclass

# After a longer pause between two checks, s, the job itself was stopped, so no worker counts as silent.
MAX_CHECK_INTERVAL = 5.0
# Seconds between two checks.
CHECK_INTERVAL = 0.2
# Workers send each second. After this many seconds without a message, a worker counts as silent.
RESPONSIVE_INTERVAL = 3.0


@dataclass
class _Liveness:
    last_message_at: float | None = None  # of the current start
    waited: float = 0.0  # seconds without a report on this attempt
    silent: float = 0.0  # seconds of silence while most others sent
    silent_total: float = 0.0  # seconds, in total


class Watch:
    """`contact_timeout` bounds the first message of an attempt; `silence_timeout` the silence while others send, in s.

    Without a network between job and workers (`is_networked`), silence counts whether others send or not.
    """

    def __init__(self, contact_timeout: float, silence_timeout: float, is_networked: bool = True) -> None:
        self._contact_timeout, self._silence_timeout, self._checked_at = contact_timeout, silence_timeout, 0.0
        self._is_networked = is_networked
        self._workers: dict[str, _Liveness] = {}

    def record_message(self, name: str, now: float) -> None:
        worker = self._workers.setdefault(name, _Liveness())
        worker.last_message_at, worker.silent, worker.silent_total = now, 0.0, 0.0

    def forget(self, name: str) -> None:
        self._workers.pop(name, None)

    def begin(self) -> None:
        """Begins an attempt, in which each worker must report again."""
        for worker in self._workers.values():
            worker.waited = 0.0

    def is_due(self, now: float) -> bool:
        """Returns whether to check again. A job with a thousand workers receives thousands of messages per second."""
        return now - self._checked_at >= CHECK_INTERVAL

    def find_dead(self, ready: Mapping[str, bool], is_connected: bool, now: float) -> dict[str, str]:
        """Returns dead workers with the reason. `ready` maps the expected workers to their participation.

        No worker counts as dead while the job itself is disconnected.
        """
        since, self._checked_at = now - self._checked_at, now
        if not is_connected or since > MAX_CHECK_INTERVAL:
            return {}
        responsive = sum(self._is_responsive(name, now) for name in ready)
        dead: dict[str, str] = {}
        for name, is_ready in ready.items():
            others, others_respond = len(ready) - 1, responsive - self._is_responsive(name, now)
            if why := self._check_worker(name, is_ready, since, not self._is_networked or (others > 0 and 2 * others_respond >= others)):
                dead[name] = why
        return dead

    def _is_responsive(self, name: str, now: float) -> bool:
        last_message_at = self._workers[name].last_message_at if name in self._workers else None
        return last_message_at is not None and now - last_message_at < RESPONSIVE_INTERVAL

    def _check_worker(self, name: str, is_ready: bool, since: float, others_respond: bool) -> str | None:
        worker = self._workers.setdefault(name, _Liveness())
        worker.waited += 0.0 if is_ready else since
        if worker.waited >= self._contact_timeout:
            return f"no message within {self._contact_timeout:g} s"
        if worker.last_message_at is None:
            return None
        worker.silent_total += since
        worker.silent += since if others_respond else 0.0
        if worker.silent >= self._silence_timeout or worker.silent_total >= self._contact_timeout:
            return f"silent for {worker.silent_total:.0f} s"
        return None
