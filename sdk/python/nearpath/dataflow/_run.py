"""One attempt of one worker, in its own process: from a plan to the last acknowledgement."""

import contextlib
import itertools
import json
import resource
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _native
from ._decide import Word
from ._growing import Asking
from ._members import Plan
from ._outlet import Outlet
from ._store import store
from ._workers import Item, Worker

# A worker that makes its items looks so often whether a checkpoint begins.
LOOK = 0.05
# Of what user code says of an exception, so much goes to the job: with it a word must fit into one message.
WHY, TRACE = 2000, 30000


class Saying:
    """What a worker says to its job: its whole state, on every change and now and then."""

    def __init__(self, say: Callable[[Word], None], **state: Any) -> None:
        self._say, self._state, self._lock = say, state, threading.Lock()

    def change(self, **state: Any) -> None:
        with self._lock:
            self._state.update(state)
            self._say(self._state)


@dataclass
class Kept:
    """What a checkpoint has of one worker."""

    state: Any = None
    made: int = 0
    inputs: dict[str, int | None] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    given: dict[str, int] = field(default_factory=dict)  # workers that it was given, by stage
    answers: list[int] = field(default_factory=list)  # to its calls of grow that are made again


class Running:
    """One worker and its streams."""

    def __init__(self, plan: Plan, worker: Worker, said: Saying) -> None:
        self.plan, self.worker, self.said = plan, worker, said
        worker.name, worker.number, worker.of, worker.folder = plan.part["name"], plan.number, plan.of, plan.folder or ""
        self.own_inputs = [port for port in plan.part["inputs"] if port["type"] != "tcp"]
        self.inputs = [port["worker"] for port in plan.part["inputs"] if port["type"] == "tcp"]
        self.targets = [port for port in plan.part["outputs"] if port["type"] == "tcp"]
        if self.own_inputs and self.inputs:
            raise ValueError(f"{worker.name} has streams and inputs of its own: make two workers of it")
        self.kept, self.asking = Kept(), Asking(self.targets, self.inputs, said.change)
        setattr(worker, "_ask", self.asking.ask)
        self.store = None if plan.store is None else store(plan.store)
        self.made, self.items, self.began, self.used = 0, 0, time.monotonic(), _processor_seconds()
        self.skip = 0  # items that come once more
        self.work, self.steps, self.finishing, self.started = 0, 0, False, self.began
        self.streams: _native.Streams | None = None
        self._triggered, self.gone = 0, ""

    def recall(self) -> None:
        """What the checkpoint has of it."""
        if self.plan.checkpoint and self.store and not self.plan.owner:  # who was asked for since has nothing there
            (kept,) = _native.decode(self.store.load(self.plan.checkpoint, self.worker.name))
            self.kept = Kept(**kept)
            self.made = self.skip = self.kept.made

    def orders(self) -> str:
        """For its streams."""
        plan = self.plan
        inputs = [self._input(port) for port in self.plan.part["inputs"] if port["type"] == "tcp"]
        outputs = [self._output(port) for port in self.targets]
        spill = {"folder": plan.folder, "limit": plan.spill}
        orders = {"name": self.worker.name, "attempt": plan.attempt, "inputs": inputs, "outputs": outputs, "spill": spill}
        return json.dumps({**orders, "window": plan.window, "checkpoint": plan.checkpoint, "patience": plan.patience})

    def _input(self, port: Mapping[str, Any]) -> dict[str, Any]:
        """Who was started for another worker reads that one alone. Where the last barrier did not go, nothing is open yet."""
        name, owner = port["worker"], self.plan.owner
        processed = self.kept.inputs.get(name, 0)
        if name in self.plan.ended or owner not in (None, name):
            processed = None
        return {"from": name, "processed": processed, "later": owner is None and processed == 0 and port.get("later", False)}

    def _output(self, port: Mapping[str, Any]) -> dict[str, Any]:
        sent = self.kept.outputs.get(port["worker"], 0)
        later = sent == 0 and port.get("later", False)
        return {"to": port["worker"], "sent": sent, "spill": port.get("spill", False), "later": later}

    def run(self, streams: _native.Streams) -> None:
        """All items, from the first or from where the checkpoint was."""
        self.streams, self.outlet = streams, Outlet(self.worker, streams, self.plan.part["outputs"], self.plan.window)
        self.worker.start()
        self.worker.restore(self.kept.state)
        self.started = time.monotonic()
        self.asking.go_on(self.kept.given, self.kept.answers, self.kept.outputs)
        if self.own_inputs:
            if left_out := self.worker.resume(self.skip):
                self.skip -= left_out
                self.asking.forget()
            made = itertools.chain.from_iterable(self.worker.input(port) for port in self.own_inputs)
            self.make(itertools.chain(self.worker.process(made), self.worker.finish()))
        else:
            self.pass_on(streams)
            self.make(self.worker.finish())
        self.settle(streams)
        self.outlet.flush()
        self.result = self.worker.result()
        streams.finish()

    def pass_on(self, streams: _native.Streams) -> None:
        """What streams bring."""
        receive, is_raw = streams.receive, self.worker.codec == "raw"
        while (came := receive()) is not None:
            if isinstance(came, int):
                self.cut(came)
                continue
            items = (came[1],) if is_raw else self.worker.deserialise(came[1])
            self.items += self.outlet.take(iter(self.worker.process(items)), None)[0]
            self.work, self.steps = self.work + len(came[1]), self.steps + 1
        self.finishing = True

    def make(self, items: Iterable[Item]) -> None:
        """What comes from nowhere else. What was made before the checkpoint is made once more, and goes nowhere."""
        rest, done = itertools.islice(items, self.skip, None), False
        self.asking.answers = []
        while not done:
            count, done = self.outlet.take(rest, LOOK)
            self.items, self.made, self.steps = self.items + count, self.made + count, self.steps + 1
            self.work += count if self.own_inputs else 0
            if self.gone:  # streams tell it only to who sends, and a batch may take its time
                raise ConnectionError(self.gone)
            self.cut_if_due()

    def settle(self, streams: _native.Streams) -> None:
        """Who has asked for others stays until they are there: their streams end with its own."""
        while not self.asking.is_settled(streams):
            self.asking.wait(LOOK)
            self.cut_if_due()

    def cut_if_due(self) -> None:
        while self.streams and (checkpoint := self.streams.due()) is not None:
            self.cut(checkpoint)

    def cut(self, checkpoint: int) -> None:
        """All before belongs to the checkpoint, all after does not."""
        assert self.streams and self.store, "there is a checkpoint, and no place for it"
        self.outlet.flush()
        state = self.worker.snapshot()
        inputs, outputs = self.streams.barrier(checkpoint)
        names = [port["worker"] for port in self.targets]
        stands = dict(zip(self.inputs, inputs)), dict(zip(names, outputs))
        kept = Kept(state, self.made, *stands, self.asking.given, self.asking.answers or [])
        mark = self.store.save(checkpoint, self.worker.name, _native.encode([vars(kept)]))
        self.said.change(saved=checkpoint, mark=mark)

    def release(self) -> None:
        """Its streams end before those of the next attempt begin."""
        self.streams = None
        vars(self).pop("outlet", None)

    # From the thread that hears the job.

    def heed(self, word: Word) -> None:
        """A checkpoint begins, perhaps; said more than once, it begins once."""
        if (streams := self.streams) and "grow" in word:
            self.asking.heed(streams, word["grow"], word.get("ports", {}))
        if streams and word.get("cut", 0) > self._triggered:
            self._triggered = word["cut"]
            streams.trigger(self._triggered)

    def give_up(self, why: str) -> None:
        self.gone = why
        self.asking.give_up(why)
        if streams := self.streams:
            streams.fail(why)

    def report(self) -> dict[str, Any]:
        """How far it is, and what it took; in this attempt."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        now, streams = time.monotonic(), self.streams
        report = {
            "items": self.items,
            "made": self.made,
            "seconds": now - self.began,
            "processor": _processor_seconds() - self.used,
            "memory": used.ru_maxrss * 1024,
        }
        if not streams:
            return report
        summary = _summary(json.loads(streams.stats()))
        working = max(0.0, now - self.started - summary["waited_for_input"] - summary["waited_for_room"])
        pace = {"work": self.work, "steps": self.steps, "working": working, "finishing": self.finishing}
        return {**report, **summary, **pace}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _summary(stats: dict[str, Any]) -> dict[str, Any]:
    """Of all streams. A worker may have hundreds, and says this every second."""
    paths: dict[str, int] = {}
    for edge in stats["outputs"]:
        if path := edge.get("path", "local"):  # nothing: there is no stream yet
            paths[path] = paths.get(path, 0) + 1
    return {
        "bytes_in": sum(edge["bytes"] for edge in stats["inputs"]),
        "bytes_out": sum(edge["bytes"] for edge in stats["outputs"]),
        "spilled": sum(edge["spilled"] for edge in stats["outputs"]),
        "waited_for_input": stats["waited_for_input"],
        "waited_for_room": stats["waited_for_room"],
        "paths": paths,
    }


def work(running: Running, connect: Callable[[str], _native.Streams]) -> int:
    """One attempt: 0 when all is done, 3 when a peer or the store went away, 1 when its code raised. The job is told."""
    try:
        running.recall()
        running.run(connect(running.orders()))
        running.said.change(report=running.report(), finished=True, result=running.result)
        return 0
    except ConnectionError as error:
        running.said.change(lost=str(error))
        return 3
    except BaseException as error:
        raised(running.said, error)
        with contextlib.suppress(Exception):
            running.give_up(f"{type(error).__name__}: {error}")
        return 1


def raised(said: Saying, error: BaseException) -> None:
    """No second try can help."""
    trace = "".join(traceback.format_exception(error))
    said.change(failed={"why": f"{type(error).__name__}: {error}"[:WHY], "trace": trace[-TRACE:]})
