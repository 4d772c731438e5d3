"""Workers that start while the job runs: the job's decisions and the workers' requests (decision 44)."""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _native
from ._attempt import ControlMessage


class ScaleOut:
    """The job's side of scale-out in one attempt. `_native.ScaleOutDecisions` decides grants, starts and streams."""

    def __init__(self, topology: str, participants: Iterable[str], finished: Iterable[str], requesters: Iterable[str]) -> None:
        self._decisions, self._finished = _native.ScaleOutDecisions(topology, set(participants), set(finished)), set(finished)
        # Requesters that must still report their reserved workers: granted, but not started by the checkpoint.
        self._unreported = set(requesters) - self._finished
        # By requester: the call's number, the stage and the count; then the call's number and the granted count.
        self._requests: dict[str, tuple[int, str, int]] = {}
        self._answers: dict[str, list[int]] = {}
        self._opened: dict[str, int] = {}  # by worker: the number of opened streams that were recorded
        self._has_changes = True
        self.version = 0  # increases with each new message

    @classmethod
    def from_checkpoint(cls, parts: Mapping[str, Mapping[str, Any]], participants: Iterable[str], finished: Iterable[str]) -> "ScaleOut | None":
        """Creates the state at the last checkpoint; None if no stage can scale out."""
        requesters = [name for name, part in parts.items() if any(port.get("pending") for port in part["outputs"])]
        active = [name for name in requesters if not parts[name].get("spare") or name in participants]
        return cls(json.dumps({"workers": list(parts.values())}), participants, finished, active) if requesters else None

    def receive(self, name: str, message: ControlMessage) -> None:
        """Takes the scale-out part of a worker's message."""
        if name in self._unreported and "reserved" in message:
            self._unreported.discard(name)
            for stage, count in message["reserved"].items():
                self._decisions.restore_reservation(name, stage, count)
            self._has_changes = True
        if request := message.get("request"):
            self._requests[name] = request
        # The message lists all opened streams: only those behind the recorded ones are new.
        if opened := message.get("opened", [])[self._opened.get(name, 0) :]:
            self._opened[name] = self._opened.get(name, 0) + len(opened)
            for spare in opened:
                self._decisions.record_opened(name, spare)
        if message.get("finished") and name not in self._finished:
            self._finished.add(name)
            self._decisions.record_finished(name)
            self._has_changes = True

    def advance(self, may_change: bool) -> list[str]:
        """Answers requests and returns the workers to start. `may_change`: no checkpoint is in progress, so streams may open."""
        if self._unreported:
            return []
        for name, (call_number, stage, count) in self._requests.items():
            self._answer(name, [call_number, self._decisions.request_workers(name, call_number, stage, count)])
        self._requests.clear()
        if not may_change or not self._has_changes:
            return []
        self._has_changes = False
        if not self._decisions.between_checkpoints():
            return []
        self.version += 1
        return list(self._decisions.started_workers())

    def _answer(self, name: str, answer: list[int]) -> None:
        if self._answers.get(name) != answer:
            self._answers[name] = answer
            self.version += 1
            self._has_changes = True

    @property
    def blocks_checkpoint(self) -> bool:
        return self._decisions.blocks_checkpoints()

    def owner(self, name: str) -> str | None:
        """Returns the worker that requested `name` in this attempt."""
        return self._decisions.started_workers().get(name)

    def message_for(self, name: str, ready: Callable[[str], bool]) -> ControlMessage:
        """Returns a worker's scale-out message. An output opens once its consumer is ready."""
        inputs, outputs, unused = self._decisions.edge_update(name)
        outputs = [other for other in outputs if ready(other)]
        return {"inputs": inputs, "outputs": outputs, "unused": unused, "answer": self._answers.get(name)}


class ScaleOutRequests:
    """The worker's side of scale-out: its calls of `grow` and the streams to open."""

    def __init__(self, targets: Sequence[Mapping[str, Any]], inputs: Sequence[str], report: Callable[..., None]) -> None:
        # Indexes of the streams by the peer's name. Only pending outputs can open.
        self._inputs = {name: index for index, name in enumerate(inputs)}
        self._outputs = {port["worker"]: index for index, port in enumerate(targets) if port.get("pending")}
        pending = (port for port in targets if port.get("pending"))
        self._stages: dict[str, str] = {port["worker"]: port.get("group") or port["worker"] for port in pending}
        self._report, self._is_allowed = report, False
        self.granted: dict[str, int] = {}
        # Results of the calls that a resumed worker would repeat; None: it would repeat none.
        self.answers: list[int] | None = None
        self._replayed: list[int] = []  # the recorded results that repeated calls return
        # The last call's number, and the last answer: the call's number and the granted count.
        self._changed, self._call_number, self._answer = threading.Condition(), 0, [0, 0]
        self._failure: str | None = None
        self._opened: list[str] = []

    def resume(self, granted: Mapping[str, int], answers: Sequence[int], sent: Mapping[str, int]) -> None:
        """Resumes from the checkpoint. Reports granted workers that had not started by then as reserved."""
        self.granted, self._replayed, self._is_allowed = dict(granted), list(answers), True
        if self._outputs:
            # A barrier has passed each stream of a started worker, so its position is not 0.
            started = [stage for name, stage in self._stages.items() if sent.get(name)]
            self._report(reserved={stage: granted.get(stage, 0) - started.count(stage) for stage in set(self._stages.values())})

    def discard_recorded_calls(self) -> None:
        """Discards the results of earlier calls, because the worker does not repeat these calls."""
        self._replayed = []

    # Called on the worker's thread.

    def request(self, count: int, stage: str | None) -> int:
        """Requests workers and returns the granted count. A call from before the checkpoint gets its recorded result."""
        if not self._is_allowed:
            raise RuntimeError("grow was called before the worker started: call it in input, process or finish")
        stage = self._target_stage(stage)
        if self.answers is not None and len(self.answers) < len(self._replayed):
            granted = self._replayed[len(self.answers)]  # counted before the checkpoint, so not again
        else:
            granted = self._wait_for_answer(count, stage)
            self.granted[stage] = self.granted.get(stage, 0) + granted
        if self.answers is not None:
            self.answers.append(granted)
        return granted

    def _target_stage(self, stage: str | None) -> str:
        stages = sorted(set(self._stages.values()))
        if stage is None and len(stages) == 1:
            return stages[0]
        if stage in stages:
            return str(stage)
        allowed = ", ".join(stages) or "none: set `max_workers` of one"
        raise ValueError(f"invalid stage {stage!r} in grow: expected one that reads this worker and has `max_workers`: {allowed}")

    def _wait_for_answer(self, count: int, stage: str) -> int:
        if count < 1:
            raise ValueError(f"invalid worker count {count}: expected 1 or more")
        self._call_number += 1
        self._report(request=[self._call_number, stage, count])
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None or self._answer[0] == self._call_number)
            if self._failure is not None:
                raise _native.PeerLostError(self._failure)
            return self._answer[1]

    def has_all_granted(self, streams: _native.Streams) -> bool:
        """Returns whether all granted workers have open streams."""
        return len(streams.filter_open_outputs(list(self._outputs.values()))) == sum(self.granted.values())

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
            if self._failure is not None:
                raise _native.PeerLostError(self._failure)

    # Called on the thread that receives the job's messages.

    def handle(self, streams: _native.Streams, message: ControlMessage, ports: Mapping[str, int]) -> None:
        before = len(self._opened)
        for name in [name for name in message["inputs"] if name not in self._opened]:
            streams.open_input(self._inputs[name])
            self._opened.append(name)
        for name in [name for name in message["outputs"] if name not in self._opened]:
            streams.open_output(self._outputs[name], name, ports.get(name))
            self._opened.append(name)
        for name in message["unused"]:
            streams.mark_input_unused(self._inputs[name])
        with self._changed:
            self._answer = message["answer"] or self._answer
            self._changed.notify_all()
        if len(self._opened) > before:
            self._report(opened=list(self._opened))

    def fail(self, why: str) -> None:
        with self._changed:
            self._failure = why
            self._changed.notify_all()
