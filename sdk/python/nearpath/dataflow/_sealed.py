"""Seals messages between a job and one start of a worker. The rendezvous forwards them, and cannot forge, change or repeat one.

Both ends have the key from the worker's orders, which take another path. A sealed message is the HMAC-SHA256 of the rest in
hexadecimal digits, a space, and JSON: `from` (`job` or `worker`), `sender` (random for each process), `number` (increasing with
each message), `message`. The rendezvous can still read and drop messages.
"""

import hashlib
import hmac
import json
import secrets
from typing import Any

from ._attempt import ControlMessage

TAG_DIGITS = 2 * hashlib.sha256().digest_size


def new_key() -> str:
    """Returns a random key for the orders of one start."""
    return secrets.token_hex(32)


class Seal:
    """Seals and opens messages at one end. Performs no I/O; used by one thread at a time."""

    def __init__(self, key: str, own: str, other: str) -> None:
        self._key, self._own, self._other = bytes.fromhex(key), own, other
        self._sender, self._number = secrets.token_hex(8), 0
        self._last_numbers: dict[str, int] = {}  # by sender, because a place may start a worker twice

    @classmethod
    def of_job(cls, key: str) -> "Seal":
        return cls(key, "job", "worker")

    @classmethod
    def of_worker(cls, key: str) -> "Seal":
        return cls(key, "worker", "job")

    def close(self, message: ControlMessage) -> str:
        """Seals a message for sending."""
        self._number += 1
        text = json.dumps({"from": self._own, "sender": self._sender, "number": self._number, "message": message})
        return f"{self._tag(text)} {text}"

    def open(self, text: str) -> ControlMessage | None:
        """Returns the message if it is authentic, for this start and new; otherwise None."""
        tag, text = text[:TAG_DIGITS], text[TAG_DIGITS + 1 :]
        if not hmac.compare_digest(tag.encode(), self._tag(text).encode()):
            return None
        envelope: dict[str, Any] = json.loads(text)
        if envelope["from"] != self._other or envelope["number"] <= self._last_numbers.get(envelope["sender"], 0):
            return None
        self._last_numbers[envelope["sender"]] = envelope["number"]
        message: ControlMessage = envelope["message"]
        return message

    def _tag(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
