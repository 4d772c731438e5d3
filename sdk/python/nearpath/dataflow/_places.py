"""Where workers run: what a place is asked to do, and nothing else."""

import abc
import math


class Started(abc.ABC):
    """One start of one worker at a place."""

    @abc.abstractmethod
    def ended(self) -> str | None:
        """None while it runs, as far as is known; else how it ended, for people; "" when it ended well. Returns at once."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends it, as far as the place can. Returns soon. May be called again, and after it has ended."""


class Place(abc.ABC):
    """Where workers run. One that you write starts `nearpath.dataflow.elsewhere.run(orders)` in a process there."""

    name: str = "place"  # for reports
    limit: float = math.inf  # seconds that one start may run; the job turns over before they are up
    memory: float | None = None  # GB that each start is paid for; None: what its process used

    @abc.abstractmethod
    def start(self, worker: str, orders: bytes) -> Started:
        """Returns at once. Raises only what no second try can help; all else is told by `Started.ended`."""

    def close(self) -> None:
        """After the job. All that was started has been stopped by then."""
