"""Workers as invocations of a Lambda function."""

import contextlib
import logging
import threading
import time
from typing import Any

from .._places import Place, Started
from . import _client
from ._calls import Refused, Waits, how_it_ended

log = logging.getLogger("nearpath.dataflow")

# As long as any function of Lambda may run that is asked and waited for.
LONGEST = 900.0
# Seconds in which starts that Lambda refuses for now are tried again.
PATIENCE = 60.0
CLOSE = 2.0


class Lambda(Place):
    """Runs each worker as one invocation of a function whose code `python -m nearpath.dataflow.aws package` has packed.

    `function` is a name, a name with an alias (`name:alias`) or an ARN. `limit`, the seconds of one invocation, and `memory`, in GB, are
    what the function is configured with; they are asked for (lambda:GetFunctionConfiguration) where they are not given. `client` is a
    client of boto3's for Lambda, with retries off; else one is made, for `region` and `endpoint` where they are given.

    Starts that Lambda refuses for now (its limit of invocations at once, above all) are tried again for `patience` seconds.
    Raises LookupError where there is no such function, PermissionError where it may not be looked at and no `limit` is given.
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
        patience: float = PATIENCE,
    ) -> None:
        self.function, self.patience, self._own = function, patience, client is None
        self._errors = _client.need("botocore.exceptions")
        self._client = client or _client.make(region, endpoint, limit or LONGEST)
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
        """No worker is started any more. Those that still work end when their job says so, or is silent."""
        for invocation in self._started:
            invocation.stop()
        end = time.monotonic() + CLOSE
        for invocation in self._started:
            invocation.thread.join(max(0.0, end - time.monotonic()))
        if self._own:
            self._client.close()

    def _configured(self, is_limit_known: bool) -> tuple[float, float | None]:
        """The seconds and the memory that the function has."""
        try:
            told = self._client.get_function_configuration(FunctionName=self.function)
        except self._errors.ClientError as error:
            refused = Refused.read(error.response)
            if refused.code == "ResourceNotFoundException":
                raise LookupError(f"{refused.message}. `python -m nearpath.dataflow.aws package` says how to make it") from None
            if refused.code != "AccessDeniedException":
                raise
            if is_limit_known:
                return LONGEST, None
            raise PermissionError(
                f"{refused.message}. Allow lambda:GetFunctionConfiguration, or say limit= (the function's timeout, s) and memory= (GB)"
            ) from None
        if told.get("State") == "Failed":
            raise RuntimeError(f"the function {self.function} cannot run: {told.get('StateReason')}")
        return float(told["Timeout"]), told["MemorySize"] / 1024

    def _say_throttled(self, why: Refused) -> None:
        if not self._throttled.is_set():
            self._throttled.set()
            log.warning(
                "Lambda starts no more workers of %s for now, and is asked again for %.0f s: %s",
                self.function,
                self.patience,
                why,
            )


class _Invocation(Started):
    """One worker. A thread waits for the function's answer."""

    def __init__(self, place: Lambda, worker: str, orders: bytes) -> None:
        self._place, self._orders = place, orders
        self._how: str | None = None
        self._stopped = threading.Event()
        # A daemon: a job that has ended does not wait for what may take fifteen minutes.
        self.thread = threading.Thread(target=self._run, name=f"lambda {worker}", daemon=True)

    def ended(self) -> str | None:
        return self._how

    def wait(self, seconds: float) -> str | None:
        self.thread.join(seconds)
        return self._how

    def stop(self) -> None:
        """Nothing outside can end an invocation: the worker ends when its job says so, or is silent. One that waits is not started."""
        self._stopped.set()

    def _run(self) -> None:
        try:
            self._how = self._invoke()
        except Exception as error:  # no credentials, no such region: whatever it is, the job must hear of it
            self._how = f"Lambda could not be asked: {type(error).__name__}: {error}"

    def _invoke(self) -> str:
        waits, errors = Waits(self._place.patience), self._place._errors
        while not self._stopped.is_set():
            began = time.monotonic()
            try:
                return self._ask()
            except errors.ClientError as error:
                refused = Refused.read(error.response)
            except (errors.EndpointConnectionError, errors.ConnectTimeoutError) as error:
                refused = Refused("not reached", str(error), later=True)
            except errors.HTTPClientError as error:  # broken or silent after it was asked: the worker may well be at work
                return self._unknown(began, error)
            wait = waits.next(refused.asked) if refused.later else None
            if wait is None:
                return f"Lambda does not start it, asked {waits.tries + 1} times in {waits.waited:.0f} s: {refused}"
            self._place._say_throttled(refused)
            self._stopped.wait(wait)
        return ""

    def _ask(self) -> str:
        answer = self._place._client.invoke(FunctionName=self._place.function, Payload=self._orders, LogType="Tail")
        with contextlib.closing(answer["Payload"]) as payload:
            return how_it_ended(answer.get("FunctionError"), payload.read(), answer.get("LogResult"))

    def _unknown(self, began: float, error: Exception) -> str:
        """Who hears nothing more learns only that the worker's time is up; its job hears the worker itself."""
        self._stopped.wait(max(0.0, began + self._place.limit - time.monotonic()))
        return f"nobody knows how it ended: the connection to Lambda broke ({error})"
