"""Runs workers as invocations of a Lambda function."""

import contextlib
import logging
import threading
import time
from typing import Any

from .._places import Place, Started
from . import _client
from ._calls import Refused, RetryDelays, describe_end

log = logging.getLogger("nearpath.dataflow")

# Lambda's maximum for a synchronous invocation.
MAX_INVOCATION_SECONDS = 900.0
# Seconds in which temporarily refused starts are retried.
START_TIMEOUT = 60.0
CLOSE_GRACE = 2.0


class Lambda(Place):
    """Runs each worker as one invocation of a function packaged by `python -m nearpath.dataflow.aws package`.

    `function` is a name, a name with an alias (`name:alias`) or an ARN. `limit` (seconds of one invocation) and `memory` (GB)
    default to the function's configuration (lambda:GetFunctionConfiguration). `client` is a Lambda client of boto3 without
    retries. The default client uses `region` and `endpoint`.

    Temporarily refused starts (mostly by the concurrency limit) are retried for `start_timeout` seconds. Raises LookupError for a
    missing function, and PermissionError without the permission to read the limit.
    """

    name = "lambda"

    def __init__(
        self,
        function: str,
        *,
        client: Any = None,
        region: str | None = None,
        endpoint: str | None = None,
        memory: float | None = None,
        limit: float | None = None,
        start_timeout: float = START_TIMEOUT,
    ) -> None:
        self.function, self.start_timeout, self._own = function, start_timeout, client is None
        self._errors = _client.import_optional("botocore.exceptions")
        self._client = client or _client.make(region, endpoint, limit or MAX_INVOCATION_SECONDS)
        if limit is None or memory is None:
            seconds, gigabytes = self._configured(limit is not None)
            limit, memory = limit or seconds, memory or gigabytes
        self.limit, self.memory = limit, memory
        _client.check(self._client, self.limit)
        self._started: list[_Invocation] = []
        self._throttled = threading.Event()

    def start(self, worker: str, orders: bytes) -> Started:
        invocation = _Invocation(self, worker, orders)
        self._started = [*(other for other in self._started if other.thread.is_alive()), invocation]
        invocation.thread.start()
        return invocation

    def close(self) -> None:
        """Stops starting workers. Running workers end when their job ends or is silent."""
        for invocation in self._started:
            invocation.stop()
        end = time.monotonic() + CLOSE_GRACE
        for invocation in self._started:
            invocation.thread.join(max(0.0, end - time.monotonic()))
        if self._own:
            self._client.close()

    def _configured(self, is_limit_known: bool) -> tuple[float, float | None]:
        """Returns the configured timeout in s and memory in GB."""
        try:
            answer = self._client.get_function_configuration(FunctionName=self.function)
        except self._errors.ClientError as error:
            refused = Refused.read(error.response)
            if refused.code == "ResourceNotFoundException":
                raise LookupError(f"{refused.message}. `python -m nearpath.dataflow.aws package` prints the command that creates it") from None
            if refused.code != "AccessDeniedException":
                raise
            if is_limit_known:
                return MAX_INVOCATION_SECONDS, None
            raise PermissionError(
                f"{refused.message}. Allow lambda:GetFunctionConfiguration, or pass limit= (the function's timeout, s) and memory= (GB)"
            ) from None
        if answer.get("State") == "Failed":
            raise RuntimeError(f"the function {self.function} cannot run: {answer.get('StateReason')}")
        return float(answer["Timeout"]), answer["MemorySize"] / 1024

    def _log_throttled(self, refused: Refused) -> None:
        if not self._throttled.is_set():
            self._throttled.set()
            log.warning(
                "Lambda refuses more workers of %s temporarily, retrying for %.0f s: %s",
                self.function,
                self.start_timeout,
                refused,
            )


class _Invocation(Started):
    """The invocation of one worker. A thread waits for its response."""

    def __init__(self, place: Lambda, worker: str, orders: bytes) -> None:
        self._place, self._orders = place, orders
        self._end: str | None = None
        self._stopped = threading.Event()
        # A daemon, so that an ended job does not wait for up to fifteen minutes.
        self.thread = threading.Thread(target=self._run, name=f"lambda {worker}", daemon=True)

    def ended(self) -> str | None:
        return self._end

    def wait(self, seconds: float) -> str | None:
        self.thread.join(seconds)
        return self._end

    def stop(self) -> None:
        """Cancels a pending start. A running invocation ends when its job ends or is silent."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._end = self._invoke()
        except Exception as error:  # such as missing credentials; the job must get an end
            self._end = f"Lambda could not be called: {type(error).__name__}: {error}"

    def _invoke(self) -> str:
        delays, errors = RetryDelays(self._place.start_timeout), self._place._errors
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                return self._call()
            except errors.ClientError as error:
                refused = Refused.read(error.response)
            except (errors.EndpointConnectionError, errors.ConnectTimeoutError) as error:
                refused = Refused("not reached", str(error), is_retryable=True)
            except errors.HTTPClientError as error:  # broken after the request: the worker may run
                return self._unknown(began, error)
            delay = delays.next(refused.retry_after) if refused.is_retryable else None
            if delay is None:
                return f"Lambda refused the start {delays.tries + 1} times in {delays.waited:.0f} s: {refused}"
            self._place._log_throttled(refused)
            self._stopped.wait(delay)
        return ""

    def _call(self) -> str:
        answer = self._place._client.invoke(FunctionName=self._place.function, Payload=self._orders, LogType="Tail")
        with contextlib.closing(answer["Payload"]) as payload:
            return describe_end(answer.get("FunctionError"), payload.read(), answer.get("LogResult"))

    def _unknown(self, began: float, error: Exception) -> str:
        """Waits for the function's timeout, because the job still gets the worker's own messages."""
        self._stopped.wait(max(0.0, began + self._place.limit - time.monotonic()))
        return f"unknown end: the connection to Lambda broke ({error})"
