"""The job's interface to its workers, local or remote."""

import abc
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._attempt import Attempt, ControlMessage


@dataclass(frozen=True)
class Plan:
    """The job's decisions for one worker in one attempt. Plain values only: plans go to other machines."""

    part: Mapping[str, Any]  # the worker's entry of the topology
    number: int  # the worker's number in its stage
    of: int
    attempt: int
    checkpoint: int  # the checkpoint to resume from; 0: from the beginning
    ended: tuple[str, ...]  # inputs that had ended at the checkpoint
    folder: str | None  # for the worker's files; None: a temporary folder
    store: str | None  # the checkpoints' store; None: no checkpoints
    window: int
    spill: int
    contact_timeout: float
    owner: str | None = None  # the requester of a spare worker, and its only input


@dataclass(frozen=True)
class Diagnosis:
    """What a worker does that is silent or makes no progress, as far as it can be found."""

    state: str = ""  # one line
    stacks: str = ""  # of Python


class WorkerHandle(abc.ABC):
    """One start of one worker."""

    memory: float | None = None  # GB billed per start; None: the process's own use
    ends_at = math.inf  # the place's time limit, by the monotonic clock
    used_memory = 0.0  # GB, the reported maximum
    has_reported = False  # the start has sent a message
    is_leaving = False  # the end message was sent
    is_recorded = False  # the start is in the report

    def __init__(self, name: str) -> None:
        self.name, self.started_at = name, time.monotonic()

    @abc.abstractmethod
    def send(self, message_for: ControlMessage) -> None:
        """Sends a message. A backend with a repeat interval may lose it."""

    @abc.abstractmethod
    def receive(self) -> list[ControlMessage]:
        """Returns the messages since the last call, without waiting."""

    def take_heartbeat(self) -> bool:
        """Returns whether the worker has shown since the last call that it is alive, other than by messages."""
        return False

    def diagnose(self) -> Diagnosis:
        """Finds out what a stuck worker does. Waits a moment for its stacks."""
        return Diagnosis()

    @abc.abstractmethod
    def ended(self) -> str | None:
        """Returns None while the worker runs, "" after success, and otherwise the cause of its end."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the worker unconditionally. May be called again."""


class WorkerBackend(abc.ABC):
    """Starts workers and waits for their messages."""

    place = "local"  # for reports
    keeps_processes = False  # workers keep their processes when the job returns to a checkpoint
    is_networked = False  # a network between the job and its workers may fail for all of them
    repeat_interval: float | None = None  # seconds after which a message is repeated; None: no message is lost

    @abc.abstractmethod
    def start(self, plan: Plan) -> WorkerHandle:
        """Starts a worker with this plan."""

    @abc.abstractmethod
    def message_for(self, attempt: Attempt, plan: Plan) -> ControlMessage | None:
        """Returns the worker's current control message, if there is one."""

    @abc.abstractmethod
    def poll(self, seconds: float) -> list[WorkerHandle]:
        """Waits up to `seconds` for messages or ends, and returns the workers that may have some."""

    def is_connected(self) -> bool:
        """Returns whether the backend can receive messages."""
        return True

    def runs_here(self, name: str) -> bool:
        """Returns whether that worker uses the job's folder."""
        return True

    def stop_all(self, handles: Sequence[WorkerHandle]) -> None:
        """Stops these workers."""
        for handle in handles:
            handle.stop()

    @abc.abstractmethod
    def close(self) -> None:
        """Releases resources after all workers have stopped."""
