"""The state machine of one attempt at a job. It takes worker messages and returns decisions. Time is an argument."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ._scale_out import ScaleOut

# A control message holds the sender's whole state, so the job keeps only the last one received.
ControlMessage: TypeAlias = dict[str, Any]
# A dying worker's streams end shortly before the job sees its exit.
# A report of a lost stream waits this many seconds for the cause.
PEER_REASON_GRACE = 0.3


@dataclass(frozen=True)
class WorkerRaised:
    """Reports that a worker's code raised. A retry would raise again, so the job fails."""

    worker: str
    why: str
    trace: str


@dataclass(frozen=True)
class Restart:
    """Sends the job back to the last checkpoint. Workers in `replaced` are started again even if they run."""

    why: str
    replaced: frozenset[str] = frozenset()
    is_death: bool = True  # counts against the job's retries
    is_slow: bool = False  # without a death: replaces stragglers; otherwise it renews workers before their time limit


@dataclass(frozen=True)
class Completed:
    """Reports that all workers have finished."""


Outcome: TypeAlias = WorkerRaised | Restart | Completed


@dataclass
class WorkerState:
    """The job's knowledge of one worker in this attempt."""

    name: str
    message: ControlMessage = field(default_factory=dict)  # the last one; empty: none in this attempt
    ended: str | None = None  # how the worker ended; None: it runs

    @property
    def ready(self) -> bool:
        return bool(self.message)

    @property
    def saved(self) -> int:
        return int(self.message.get("saved", 0))

    @property
    def finished(self) -> bool:
        return bool(self.message.get("finished"))

    @property
    def lost(self) -> str | None:
        return self.message.get("lost")

    @property
    def report(self) -> dict[str, Any] | None:
        return self.message.get("report")

    @property
    def died(self) -> bool:
        """Returns whether the worker ended without a reported cause."""
        return self.ended is not None and not (self.finished or self.lost or self.message.get("failed"))


class Attempt:
    """One run of the job's workers, from a checkpoint to the end of the job or to the next restart."""

    def __init__(
        self,
        number: int,
        checkpoint: int,
        done: Iterable[str],
        names: Iterable[str],
        now: float,
        scale_out: "ScaleOut | None" = None,
        is_held: bool = False,
    ) -> None:
        self.number, self.checkpoint, self.done = number, checkpoint, frozenset(done)
        self.workers = {name: WorkerState(name) for name in names if name not in self.done}
        # The checkpoint in progress (0: none), and the time from which the interval to the next one counts.
        self.pending, self.since = 0, now
        self.is_held = is_held  # no worker begins before all have reported
        self._lost_peer_at: float | None = None
        self.scale_out, self._were_ready = scale_out, False

    def receive(self, name: str, message: ControlMessage, now: float) -> None:
        """Takes a worker's message. Ignores messages of other attempts."""
        worker = self.workers.get(name)
        if worker is None or message.get("attempt") != self.number:
            # A place may start a worker twice. The second start has no plan yet, so it reports attempt 0.
            if worker and worker.ready and message.get("attempt") == 0:
                worker.ended = worker.ended or "another start has replaced it"
            return
        if not worker.message and not self.has_all_joined:
            self.since = now  # the interval begins when the last worker joins
        worker.message = message
        if self.scale_out:
            self.scale_out.receive(name, message)

    def mark_ended(self, name: str, how: str) -> None:
        if name in self.workers:
            self.workers[name].ended = how

    def check_arrivals(self, arrived: Collection[str]) -> dict[str, bool]:
        """Returns for each unfinished worker whether it has sent all messages that are expected by now.

        Workers in `arrived` have reported since their start. All are held until then, because calls to absent peers would delay them.
        """
        self.is_held = self.is_held and not all(name in arrived for name in self.workers)
        return {name: worker.ready or (self.is_held and name in arrived) for name, worker in self.workers.items() if not worker.finished}

    @property
    def all_ready(self) -> bool:
        return all(worker.ready for worker in self.workers.values())

    @property
    def has_all_joined(self) -> bool:
        """Returns whether all initial workers have joined."""
        self._were_ready = self._were_ready or self.all_ready
        return self._were_ready

    def progress_state(self) -> tuple[bool, int, int, int]:
        """Returns the held flag, the ready and finished counts, and the scale-out version. A change makes new messages due."""
        ready, finished = sum(worker.ready for worker in self.workers.values()), sum(worker.finished for worker in self.workers.values())
        return self.is_held, ready, finished, self.scale_out.version if self.scale_out else 0

    # Workers that start while the others run.

    def start_spares(self) -> list[str]:
        """Adds the spare workers that are due and returns their names."""
        if self.scale_out is None or not self.has_all_joined:
            return []
        started = self.scale_out.advance(may_change=not self.pending and self._lost_peer_at is None)
        names = [name for name in started if name not in self.workers]
        self.workers |= {name: WorkerState(name) for name in names}
        return names

    def scale_out_message(self, name: str) -> ControlMessage:
        """Returns the scale-out part of a worker's message."""
        return {"scale_out": self.scale_out.message_for(name, lambda other: self.workers[other].ready)} if self.scale_out else {}

    def outcome(self, now: float) -> Outcome | None:
        """Returns the attempt's outcome, or None while it runs.

        Exceptions take precedence over deaths, and deaths over lost streams: the former cause the latter.
        """
        for worker in self.workers.values():
            if failed := worker.message.get("failed"):
                return WorkerRaised(worker.name, failed["reason"], failed["trace"])
        if dead := [worker for worker in self.workers.values() if worker.died]:
            others = f", and {len(dead) - 1} more" if len(dead) > 1 else ""
            return Restart(f"{dead[0].name} died ({dead[0].ended or 'it ended before its work was finished'}){others}", frozenset(worker.name for worker in dead))
        if all(worker.finished for worker in self.workers.values()):
            return Completed()
        return self._check_lost_peers(now)

    def _check_lost_peers(self, now: float) -> Restart | None:
        lost = next((worker for worker in self.workers.values() if worker.lost), None)
        if lost is None:
            return None
        self._lost_peer_at = now if self._lost_peer_at is None else self._lost_peer_at
        return Restart(f"{lost.name}: {lost.lost}") if now - self._lost_peer_at >= PEER_REASON_GRACE else None

    # Checkpoints.

    def begin_checkpoint(self, now: float, interval: float) -> bool:
        """Begins a checkpoint if all workers are ready and `interval` seconds have passed. Returns whether it did."""
        if self.pending or now - self.since < interval or not self.all_ready or self._lost_peer_at is not None:
            return False
        if self.scale_out and self.scale_out.blocks_checkpoint:
            return False
        self.pending = self.checkpoint + 1
        return True

    def saved_states(self) -> tuple[dict[str, str], list[str]] | None:
        """Returns the marks of the saved states and the finished workers, or None until all states are saved."""
        if not self.pending or not all(worker.finished or worker.saved == self.pending for worker in self.workers.values()):
            return None
        saved = {worker.name: str(worker.message["mark"]) for worker in self.workers.values() if worker.saved == self.pending}
        finished = [worker.name for worker in self.workers.values() if worker.saved != self.pending]
        return saved, sorted(self.done.union(finished))

    def record_checkpoint(self, now: float) -> None:
        """Records that the store has the pending checkpoint."""
        self.checkpoint, self.pending, self.since = self.pending, 0, now
