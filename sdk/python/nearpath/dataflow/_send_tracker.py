"""Tracks sent messages, so that new ones are sent and lost ones are repeated. Time is an argument."""

from ._attempt import ControlMessage

# Seconds between two polls of the job.
POLL_INTERVAL = 0.1


class SendTracker:
    """Repeats messages after `repeat_interval` seconds; None if no message is ever lost."""

    def __init__(self, repeat_interval: float | None) -> None:
        self._repeat_interval, self._sent = repeat_interval, dict[str, tuple[ControlMessage, float]]()
        self._state: object = None
        self._checked_at = 0.0

    def has_changes(self, state: object, now: float) -> bool:
        """Returns whether messages can have changed. The check of `state` saves work with a thousand workers."""
        if state == self._state and (self._repeat_interval is None or now < self._checked_at + POLL_INTERVAL):
            return False
        self._state, self._checked_at = state, now
        return True

    def should_send(self, name: str, message: ControlMessage, now: float) -> bool:
        """Returns whether to send this message now, and then counts it as sent."""
        if before := self._sent.get(name):
            sent, sent_at = before
            if sent == message and (self._repeat_interval is None or now - sent_at < self._repeat_interval):
                return False
        self._sent[name] = message, now
        return True

    def forget(self, name: str) -> None:
        """Forgets a worker's messages, because a new start has received none."""
        self._sent.pop(name, None)
