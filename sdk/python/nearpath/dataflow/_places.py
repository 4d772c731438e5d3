"""Interfaces of places, where workers run."""

import abc
import math
import time

POLL_INTERVAL = 0.02


class Started(abc.ABC):
    """A start of one worker at a place."""

    @abc.abstractmethod
    def ended(self) -> str | None:
        """None while it runs, as far as is known; else how it ended, for people; "" when it ended well. Returns at once."""

    def wait(self, seconds: float) -> str | None:
        """The same as `ended`, which becomes known within that time at the latest. Looks now and then; one that is told of the end
        does better."""
        end = time.monotonic() + seconds
        while self.ended() is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(POLL_INTERVAL, left))
        return self.ended()

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends it, as far as the place can. Returns soon. May be called again, and after it has ended."""


class Place(abc.ABC):
    """Starts workers. Your own place runs `nearpath.dataflow.elsewhere.run(orders)` in a process there."""

    name: str = "place"  # for reports
    limit: float = math.inf  # seconds that one start may run; the job turns over before they are up
    memory: float | None = None  # GB that each start is paid for; None: what its process used

    @abc.abstractmethod
    def start(self, worker: str, orders: bytes) -> Started:
        """Starts a worker and returns at once. Raises permanent errors only; `Started.ended` reports all others."""

    def close(self) -> None:
        """After the job. All that was started has been stopped by then."""
