"""Workers that are started while the job runs: what the job does for them, and what a worker does that asks."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _native
from ._decide import Seen, Word


class Growth:
    """The job's part in one attempt: who is given how many, who is started, who opens which stream. `_native.Growth` decides."""

    def __init__(self, topology: str, took_part: Iterable[str], finished: Iterable[str], asking: Iterable[str]) -> None:
        self._decides = _native.Growth(topology, set(took_part), set(finished))
        self._finished = set(finished)
        # Who has not said yet what it was given before the checkpoint, and did not get.
        self._silent = set(asking) - self._finished
        self._heard: dict[str, int] = {}
        self._answers: dict[str, list[int]] = {}
        self.version = 0  # rises when there is something new to say

    def look(self, seen: Mapping[str, Seen], may_change: bool) -> list[str]:
        """Takes in what workers say. Streams open only where no checkpoint is under way: those who are to be started now."""
        for worker in seen.values():
            self._hear(worker)
        if self._silent:
            return []
        for worker in seen.values():
            self._answer(worker)
        if may_change and self._decides.between():
            self.version += 1
        return [name for name in self._decides.grown() if name not in seen]

    def _hear(self, worker: Seen) -> None:
        if worker.name in self._silent and "owed" in worker.word:
            self._silent.discard(worker.name)
            for stage, count in worker.word["owed"].items():
                self._decides.owe(worker.name, stage, count)
        opened = worker.word.get("opened", [])
        for spare in opened[self._heard.get(worker.name, 0) :]:
            self._decides.opened(worker.name, spare)
        self._heard[worker.name] = len(opened)
        if worker.finished and worker.name not in self._finished:
            self._finished.add(worker.name)
            self._decides.finished(worker.name)

    def _answer(self, worker: Seen) -> None:
        if not (ask := worker.word.get("ask")):
            return
        call, stage, count = ask
        answer = [call, self._decides.ask(worker.name, call, stage, count)]
        if self._answers.get(worker.name) != answer:
            self._answers[worker.name] = answer
            self.version += 1

    @property
    def holds(self) -> bool:
        return self._decides.holds()

    def owner(self, name: str) -> str | None:
        """Who has asked for that worker, in this attempt."""
        return self._decides.grown().get(name)

    def word(self, name: str, seen: Mapping[str, Seen]) -> Word:
        """What a worker is told. Streams to workers open once they are there."""
        inputs, outputs, never = self._decides.word(name)
        there = [other for other in outputs if other in seen and seen[other].ready]
        return {"inputs": inputs, "outputs": there, "never": never, "answer": self._answers.get(name)}


class Asking:
    """A worker's part: its calls of `grow`, and the streams that open."""

    def __init__(
        self,
        targets: Sequence[Mapping[str, Any]],
        inputs: Sequence[str],
        sent: Mapping[str, int],
        say: Callable[..., None],
    ) -> None:
        self._say, self._is_allowed = say, False
        self._inputs = {name: at for at, name in enumerate(inputs)}
        self._outputs = {port["worker"]: at for at, port in enumerate(targets) if port.get("later")}
        self._stages: dict[str, int] = {}  # of each that may grow: how many were there at the checkpoint
        for port in targets:
            if port.get("later"):
                stage = port.get("group") or port["worker"]
                self._stages[stage] = self._stages.get(stage, 0) + (sent.get(port["worker"], 0) > 0)
        self.given: dict[str, int] = {}
        self.answers: list[int] | None = None  # to calls that are made again when the job goes on; None: calls are not
        self._again: list[int] = []
        self._changed, self._call, self._answer = threading.Condition(), 0, [0, 0]
        self._over: str | None = None
        self._opened: list[str] = []

    def go_on(self, given: Mapping[str, int], answers: Sequence[int]) -> None:
        """From where the checkpoint was. What was given and had not been started by then is owed."""
        self.given, self._again, self._is_allowed = dict(given), list(answers), True
        if self._stages:
            self._say(owed={stage: given.get(stage, 0) - there for stage, there in self._stages.items()})

    # From the worker's own thread.

    def ask(self, count: int, stage: str | None) -> int:
        if not self._is_allowed:
            raise RuntimeError("workers are asked for while the job runs: call grow in input, process or finish")
        stage = self._which(stage)
        if self.answers is not None and len(self.answers) < len(self._again):
            given = self._again[len(self.answers)]  # it was asked, and counted, before the checkpoint
        else:
            given = self._wait_for_answer(count, stage)
            self.given[stage] = self.given.get(stage, 0) + given
        if self.answers is not None:
            self.answers.append(given)
        return given

    def _which(self, stage: str | None) -> str:
        if stage is None and len(self._stages) == 1:
            return next(iter(self._stages))
        if stage in self._stages:
            return str(stage)
        may = ", ".join(sorted(self._stages)) or "none: give one `most`"
        raise ValueError(f"{stage or 'no stage'} was named to grow; of the stages that read this worker, these may: {may}")

    def _wait_for_answer(self, count: int, stage: str) -> int:
        if count < 1:
            raise ValueError(f"{count} workers cannot be asked for: ask for 1 or more")
        self._call += 1
        self._say(ask=[self._call, stage, count])
        with self._changed:
            self._changed.wait_for(lambda: self._over is not None or self._answer[0] == self._call)
            if self._over is not None:
                raise ConnectionError(self._over)
            return self._answer[1]

    def is_settled(self, streams: _native.Streams) -> bool:
        """Whether all that were given are there."""
        return len(streams.open_of(list(self._outputs.values()))) == sum(self.given.values())

    def wait(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait(seconds)
            if self._over is not None:
                raise ConnectionError(self._over)

    # From the thread that hears the job.

    def heed(self, streams: _native.Streams, word: Word, ports: Mapping[str, int]) -> None:
        before = len(self._opened)
        for name in [name for name in word["inputs"] if name not in self._opened]:
            streams.open_input(self._inputs[name])
            self._opened.append(name)
        for name in [name for name in word["outputs"] if name not in self._opened]:
            streams.open_output(self._outputs[name], name, ports.get(name))
            self._opened.append(name)
        for name in word["never"]:
            streams.never(self._inputs[name])
        with self._changed:
            self._answer = word["answer"] or self._answer
            self._changed.notify_all()
        if len(self._opened) > before:
            self._say(opened=list(self._opened))

    def give_up(self, why: str) -> None:
        with self._changed:
            self._over = why
            self._changed.notify_all()
