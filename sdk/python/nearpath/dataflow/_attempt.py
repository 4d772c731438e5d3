"""The state machine of one attempt at a job: worker messages in, decisions out. Time is an argument."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from ._scale_out import ScaleOut

# A control message holds the sender's whole state, so the last one received is enough.
ControlMessage: TypeAlias = dict[str, Any]
# A worker's streams end shortly before its end is known. A lost peer waits this many seconds for the reason.
PEER_REASON_GRACE = 0.3


@dataclass(frozen=True)
class WorkerRaised:
    """Reports that a worker's code raised. A retry cannot help."""

    worker: str
    why: str
    trace: str


@dataclass(frozen=True)
class Restart:
    """Sends the job back to the last checkpoint. Workers in `replaced` are started again even if they run."""

    why: str
    replaced: frozenset[str] = frozenset()
    is_death: bool = True
    is_slow: bool = False


@dataclass(frozen=True)
class Completed:
    """Reports that all workers have finished."""


Outcome: TypeAlias = WorkerRaised | Restart | Completed


@dataclass
class WorkerState:
    """The job's knowledge of one worker in this attempt."""

    name: str
    message: ControlMessage = field(default_factory=dict)
    ended: str | None = None

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
    """Runs from a checkpoint to the end of the job or to the next restart."""

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
        self.pending, self.since = 0, now
        self.is_held = is_held  # workers begin after all have reported
        self._lost_peer_at: float | None = None
        self.scale_out, self._were_ready = scale_out, False

    def receive(self, name: str, message: ControlMessage, now: float) -> None:
        """Takes a worker's message. Messages of other attempts are ignored."""
        worker = self.workers.get(name)
        if worker is None or message.get("attempt") != self.number:
            if worker and worker.ready and message.get("attempt") == 0:  # a second start, which has no plan yet: places may start a worker twice
                worker.ended = worker.ended or "another start has replaced it"
            return
        if not worker.message and not self.has_all_joined:
            self.since = now  # the interval begins when all workers have joined
        worker.message = message
        if self.scale_out:
            self.scale_out.receive(name, message)

    def mark_ended(self, name: str, how: str) -> None:
        if name in self.workers:
            self.workers[name].ended = how

    def check_arrivals(self, arrived: Collection[str]) -> dict[str, bool]:
        """Returns for each unfinished worker whether it has sent all messages that are expected by now.

        Workers in `arrived` have reported since their start. After all have, none is held: calls to absent peers delay the others.
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
        """Returns the held flag, the ready and finished counts, and the scale-out version."""
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
        """Decides the attempt's outcome. Exceptions take precedence over deaths, and deaths over lost peers."""
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

    def begin(self, now: float, interval: float) -> bool:
        """Begins a checkpoint if all workers are ready and `interval` seconds have passed. Returns whether it did."""
        if self.pending or now - self.since < interval or not self.all_ready or self._lost_peer_at is not None:
            return False
        if self.scale_out and self.scale_out.blocks_checkpoint:
            return False
        self.pending = self.checkpoint + 1
        return True

    def complete(self) -> tuple[dict[str, str], list[str]] | None:
        """Returns the marks of the saved states and the finished workers, or None until all states are saved."""
        if not self.pending or not all(worker.finished or worker.saved == self.pending for worker in self.workers.values()):
            return None
        saved = {worker.name: str(worker.message["mark"]) for worker in self.workers.values() if worker.saved == self.pending}
        finished = [worker.name for worker in self.workers.values() if worker.saved != self.pending]
        return saved, sorted(self.done.union(finished))

    def completed(self, now: float) -> None:
        """Records that the store has the pending checkpoint."""
        self.checkpoint, self.pending, self.since = self.pending, 0, now
