"""Words between a job and one start of a worker: the rendezvous passes them on, and can neither make nor change one, nor say one again.

Both ends have the key from the worker's orders, which go another way. A word is the HMAC-SHA256 of the rest in hexadecimal digits, a
space, and JSON: `from` (`job` or `worker`), `sender` (drawn by each process that speaks), `number` (one more for each word), `word`.
The rendezvous can still read words, and keep them from arriving.
"""

import hashlib
import hmac
import json
import secrets
from typing import Any

from ._decide import Word

TAG = 2 * hashlib.sha256().digest_size


def new_key() -> str:
    """Of one start, for its orders."""
    return secrets.token_hex(32)


class Seal:
    """One end. No I/O; of one thread at a time."""

    def __init__(self, key: str, own: str, other: str) -> None:
        self._key, self._own, self._other = bytes.fromhex(key), own, other
        self._sender, self._number = secrets.token_hex(8), 0
        self._heard: dict[str, int] = {}  # the last number of each who has the key: a place may start a worker twice

    @classmethod
    def of_job(cls, key: str) -> "Seal":
        return cls(key, "job", "worker")

    @classmethod
    def of_worker(cls, key: str) -> "Seal":
        return cls(key, "worker", "job")

    def close(self, word: Word) -> str:
        """To be said."""
        self._number += 1
        text = json.dumps({"from": self._own, "sender": self._sender, "number": self._number, "word": word})
        return f"{self._tag(text)} {text}"

    def open(self, said: str) -> Word | None:
        """What was said, if the other end has said it, for this start, and it is new."""
        tag, text = said[:TAG], said[TAG + 1 :]
        if not hmac.compare_digest(tag.encode(), self._tag(text).encode()):
            return None
        told: dict[str, Any] = json.loads(text)
        if told["from"] != self._other or told["number"] <= self._heard.get(told["sender"], 0):
            return None
        self._heard[told["sender"]] = told["number"]
        word: Word = told["word"]
        return word

    def _tag(self, text: str) -> str:
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()
