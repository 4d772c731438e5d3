"""Interfaces of places, where workers run."""

import abc
import math
import time

POLL_INTERVAL = 0.02


class Started(abc.ABC):
    """A start of one worker at a place."""

    @abc.abstractmethod
    def ended(self) -> str | None:
        """Returns None while the worker runs, "" after success, and otherwise the cause of its end. Returns at once."""

    def wait(self, seconds: float) -> str | None:
        """Waits up to `seconds` for the end, and returns `ended`. Polls; override it if the place reports ends."""
        end = time.monotonic() + seconds
        while self.ended() is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(POLL_INTERVAL, left))
        return self.ended()

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the worker if the place can. Returns soon. May be called repeatedly, also after the end."""


class Place(abc.ABC):
    """Starts workers. A custom place runs `nearpath.dataflow.remote_worker.run(orders)` in a process there."""

    name: str = "place"  # for reports
    limit: float = math.inf  # time limit of a start in seconds; the job renews workers before it
    memory: float | None = None  # paid memory of a start in GB; None: the process's use

    @abc.abstractmethod
    def start(self, worker: str, orders: bytes) -> Started:
        """Starts a worker and returns at once. Raises permanent errors only; `Started.ended` reports all others."""

    def close(self) -> None:
        """Releases resources after the job. All workers have been stopped before."""
