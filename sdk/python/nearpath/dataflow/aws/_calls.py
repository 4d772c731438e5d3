"""Interprets responses of Lambda's API. Decisions only: no socket, no clock."""

import base64
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Errors of starts that may succeed later: limits, and functions that AWS is still preparing.
RETRYABLE_ERRORS = {
    "TooManyRequestsException", "EC2ThrottledException", "ENILimitReachedException", "ENINotReadyException", "ResourceConflictException",
    "ResourceNotReadyException", "SnapStartNotReadyException", "SubnetIPAddressLimitReachedException", "ThrottlingException",
}  # fmt: skip
# The first and the maximum delay between two tries.
FIRST_DELAY, MAX_DELAY = 0.2, 5.0
# Lines of the log's end that Lambda returns with the response.
MAX_LOG_LINES = 12


class RetryDelays:
    """Computes retry delays within a total of `timeout` seconds."""

    def __init__(self, timeout: float) -> None:
        self.timeout, self.tries, self.waited = timeout, 0, 0.0

    def next(self, retry_after: str | None = None, jitter: float | None = None) -> float | None:
        """Returns None after the total. `retry_after` is the Retry-After header; `jitter` (0 to 1) spreads the workers' retries."""
        bound = min(MAX_DELAY, FIRST_DELAY * (1 << self.tries))
        delay = bound * (0.5 + 0.5 * (random.random() if jitter is None else jitter))
        if retry_after and retry_after.isdecimal():
            delay = max(delay, float(retry_after))
        if self.waited + delay > self.timeout:
            return None
        self.tries, self.waited = self.tries + 1, self.waited + delay
        return delay


@dataclass(frozen=True)
class Refused:
    """A refused invocation, which did not run."""

    code: str
    message: str
    is_retryable: bool  # another try may help
    retry_after: str | None = None

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> "Refused":
        """Reads the response of botocore's ClientError."""
        error = answer.get("Error", {})
        code, message = str(error.get("Code", "")), str(error.get("Message", ""))
        if reason := answer.get("Reason"):
            message = f"{message} ({reason})"
        return cls(code, message, code in RETRYABLE_ERRORS, answer.get("retryAfterSeconds"))

    def __str__(self) -> str:
        return f"{self.code}: {self.message}{_advice(self.code, self.message)}"


def _advice(code: str, message: str) -> str:
    if "ConcurrentInvocationLimitExceeded" in message:
        return ". The account or the function is at its concurrency limit: raise the limit, or use fewer workers"
    if code == "AccessDeniedException":
        return ". The job's user needs lambda:InvokeFunction on this function"
    return ""


def describe_end(error: str | None, payload: bytes, log: str | None) -> str:
    """Describes the end of a completed invocation; "" after success."""
    response = _read(payload)
    if error is not None:
        name, message = response.get("errorType", error), response.get("errorMessage", payload[:1000].decode(errors="replace"))
        return f"the function ended with {name}: {message}{_tail(log)}"
    ended = response.get("ended")
    if not isinstance(ended, str):
        return "the function's response is not a worker's: its handler must be nearpath.dataflow.aws.handler"
    return f"{ended}{_tail(log)}" if ended else ""


def _read(payload: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(payload)
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _tail(log: str | None) -> str:
    """Returns the last log lines of the worker, without Lambda's own."""
    lines = base64.b64decode(log or "").decode(errors="replace").splitlines()
    own = [line for line in lines if not line.startswith(("START RequestId", "END RequestId", "REPORT RequestId", "INIT_START"))]
    return "".join(f"\n  | {line}" for line in own[-MAX_LOG_LINES:])
