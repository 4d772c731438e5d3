"""What Lambda's API answers, and what that says of a worker. Decisions only: no socket, no clock."""

import base64
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What says that nothing was started, and that it may be later: limits, and functions that AWS still makes ready.
LATER = {
    "TooManyRequestsException", "EC2ThrottledException", "ENILimitReachedException", "ENINotReadyException", "ResourceConflictException",
    "ResourceNotReadyException", "SnapStartNotReadyException", "SubnetIPAddressLimitReachedException", "ThrottlingException",
}  # fmt: skip
# Waits between two tries: the first, and the longest.
FIRST, LONGEST = 0.2, 5.0
# Of the log's end, which Lambda hands over with the answer.
LINES = 12


class Waits:
    """How long to wait for the next try, while `patience` seconds are not over."""

    def __init__(self, patience: float) -> None:
        self.patience, self.tries, self.waited = patience, 0, 0.0

    def next(self, asked: str | None = None, draw: float | None = None) -> float | None:
        """None when it is enough. `asked` is the answer's Retry-After; `draw`, from 0 to 1, keeps workers from coming back all at once."""
        bound = min(LONGEST, FIRST * (1 << self.tries))
        wait = bound * (0.5 + 0.5 * (random.random() if draw is None else draw))
        if asked and asked.isdecimal():
            wait = max(wait, float(asked))
        if self.waited + wait > self.patience:
            return None
        self.tries, self.waited = self.tries + 1, self.waited + wait
        return wait


@dataclass(frozen=True)
class Refused:
    """Lambda did not start it."""

    code: str
    message: str
    later: bool  # another try may help
    asked: str | None = None

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> "Refused":
        """Of the response that botocore's ClientError has."""
        error = answer.get("Error", {})
        code, message = str(error.get("Code", "")), str(error.get("Message", ""))
        if reason := answer.get("Reason"):
            message = f"{message} ({reason})"
        return cls(code, message, code in LATER, answer.get("retryAfterSeconds"))

    def __str__(self) -> str:
        return f"{self.code}: {self.message}{_advice(self.code, self.message)}"


def _advice(code: str, message: str) -> str:
    if "ConcurrentInvocationLimitExceeded" in message:
        return ". More workers than the account or the function may run at once: have the limit raised, or use fewer workers"
    if code == "AccessDeniedException":
        return ". Who runs the job needs lambda:InvokeFunction on this function"
    return ""


def how_it_ended(error: str | None, payload: bytes, log: str | None) -> str:
    """Of an invocation that was answered: "" when it ended well."""
    told = _read(payload)
    if error is not None:
        name, message = told.get("errorType", error), told.get("errorMessage", payload[:1000].decode(errors="replace"))
        return f"the function ended with {name}: {message}{_tail(log)}"
    ended = told.get("ended")
    if not isinstance(ended, str):
        return "the function's answer is not a worker's: its handler must be nearpath.dataflow.aws.handler"
    return f"{ended}{_tail(log)}" if ended else ""


def _read(payload: bytes) -> dict[str, Any]:
    try:
        told = json.loads(payload)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _tail(log: str | None) -> str:
    """The worker's last words; what Lambda itself writes between them is left out."""
    lines = base64.b64decode(log or "").decode(errors="replace").splitlines()
    own = [line for line in lines if not line.startswith(("START RequestId", "END RequestId", "REPORT RequestId", "INIT_START"))]
    return "".join(f"\n  | {line}" for line in own[-LINES:])
