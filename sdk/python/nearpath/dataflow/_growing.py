"""Workers that are started while the job runs: what the job does for them, and what a worker does that asks."""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from . import _native
from ._decide import Word


class Growth:
    """The job's part in one attempt: who is given how many, who is started, who opens which stream. `_native.Growth` decides."""

    def __init__(self, topology: str, took_part: Iterable[str], finished: Iterable[str], asking: Iterable[str]) -> None:
        self._decides, self._finished = _native.Growth(topology, set(took_part), set(finished)), set(finished)
        # Who has not said yet what it was given before the checkpoint, and did not get.
        self._silent = set(asking) - self._finished
        self._asks: dict[str, tuple[int, str, int]] = {}
        self._answers: dict[str, list[int]] = {}
        self._opened: dict[str, int] = {}
        self._is_new = True
        self.version = 0  # rises when there is something new to say

    @classmethod
    def of(cls, parts: Mapping[str, Mapping[str, Any]], took_part: Iterable[str], finished: Iterable[str]) -> "Growth | None":
        """From the last checkpoint on. None where nobody may be started while the job runs."""
        asking = [name for name, part in parts.items() if any(port.get("later") for port in part["outputs"])]
        there = [name for name in asking if not parts[name].get("spare") or name in took_part]
        return cls(json.dumps({"workers": list(parts.values())}), took_part, finished, there) if asking else None

    def hear(self, name: str, word: Word) -> None:
        """What a worker says of it."""
        if name in self._silent and "owed" in word:
            self._silent.discard(name)
            for stage, count in word["owed"].items():
                self._decides.owe(name, stage, count)
            self._is_new = True
        if ask := word.get("ask"):
            self._asks[name] = ask
        if opened := word.get("opened", [])[self._opened.get(name, 0) :]:
            self._opened[name] = self._opened.get(name, 0) + len(opened)
            for spare in opened:
                self._decides.opened(name, spare)
        if word.get("finished") and name not in self._finished:
            self._finished.add(name)
            self._decides.finished(name)
            self._is_new = True

    def look(self, may_change: bool) -> list[str]:
        """Streams open only where no checkpoint is under way: who is to be there from now on."""
        if self._silent:
            return []
        for name, (call, stage, count) in self._asks.items():
            self._answer(name, [call, self._decides.ask(name, call, stage, count)])
        self._asks.clear()
        if not may_change or not self._is_new:
            return []
        self._is_new = False
        if not self._decides.between():
            return []
        self.version += 1
        return list(self._decides.grown())

    def _answer(self, name: str, answer: list[int]) -> None:
        if self._answers.get(name) != answer:
            self._answers[name] = answer
            self.version += 1
            self._is_new = True

    @property
    def holds(self) -> bool:
        return self._decides.holds()

    def owner(self, name: str) -> str | None:
        """Who has asked for that worker, in this attempt."""
        return self._decides.grown().get(name)

    def word(self, name: str, there: Callable[[str], bool]) -> Word:
        """What a worker is told. Streams to others open once those are there."""
        inputs, outputs, never = self._decides.word(name)
        outputs = [other for other in outputs if there(other)]
        return {"inputs": inputs, "outputs": outputs, "never": never, "answer": self._answers.get(name)}


class Asking:
    """A worker's part: its calls of `grow`, and the streams that open."""

    def __init__(self, targets: Sequence[Mapping[str, Any]], inputs: Sequence[str], say: Callable[..., None]) -> None:
        self._inputs = {name: at for at, name in enumerate(inputs)}
        self._outputs = {port["worker"]: at for at, port in enumerate(targets) if port.get("later")}
        later = (port for port in targets if port.get("later"))
        self._stages: dict[str, str] = {port["worker"]: port.get("group") or port["worker"] for port in later}
        self._say, self._is_allowed = say, False
        self.given: dict[str, int] = {}
        self.answers: list[int] | None = None  # to calls that are made again when the job goes on; None: calls are not
        self._again: list[int] = []
        self._changed, self._call, self._answer = threading.Condition(), 0, [0, 0]
        self._over: str | None = None
        self._opened: list[str] = []

    def go_on(self, given: Mapping[str, int], answers: Sequence[int], sent: Mapping[str, int]) -> None:
        """From where the checkpoint was. What was given and had not been started by then is owed."""
        self.given, self._again, self._is_allowed = dict(given), list(answers), True
        if self._outputs:
            there = [stage for name, stage in self._stages.items() if sent.get(name)]
            self._say(owed={stage: given.get(stage, 0) - there.count(stage) for stage in set(self._stages.values())})

    def forget(self) -> None:
        """The calls before the checkpoint are not made again."""
        self._again = []

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
        stages = sorted(set(self._stages.values()))
        if stage is None and len(stages) == 1:
            return stages[0]
        if stage in stages:
            return str(stage)
        may = ", ".join(stages) or "none: give one `most`"
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
