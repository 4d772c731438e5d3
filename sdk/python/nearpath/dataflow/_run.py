"""The life of one worker, in its own process: from orders to the last acknowledgement."""

import contextlib
import itertools
import json
import os
import resource
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from . import _native
from ._workers import Item, Worker

# A worker that makes its items looks so often whether a checkpoint begins.
LOOK = 0.05
CHUNK = 1024
WORD = 0.25


@dataclass(frozen=True)
class Plan:
    """What a job has decided about all its workers."""

    folder: str
    token: bytes
    window: int
    spill: int
    patience: float
    attempt: int
    checkpoint: int
    # Those that had finished by then: nothing comes from them any more.
    finished: frozenset[str]


class Line:
    """Messages to and from the job: a line of JSON each."""

    def __init__(self, line: socket.socket) -> None:
        self._socket, self._rest, self._lock = line, b"", threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def say(self, **message: Any) -> None:
        with self._lock, contextlib.suppress(OSError):  # who is gone is found out by its end
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> list[dict[str, Any]] | None:
        """What has come, without waiting when something has; None at the end."""
        try:
            came = self._socket.recv(1 << 16)
        except BlockingIOError:
            return []
        except OSError:
            return None
        *lines, self._rest = (self._rest + came).split(b"\n")
        return [json.loads(line) for line in lines] if came else None


@dataclass
class Kept:
    """What a checkpoint has of one worker."""

    state: Any = None
    made: int = 0
    inputs: dict[str, int | None] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, plan: Plan, name: str) -> "Kept":
        if not plan.checkpoint:
            return cls()
        checkpoints = _native.Checkpoints(os.path.join(plan.folder, "checkpoints"))
        (value,) = _native.decode(checkpoints.load(plan.checkpoint, name))
        return cls(**value)


class Running:
    """One worker and its streams."""

    def __init__(self, plan: Plan, orders: dict[str, Any], worker: Worker, line: Line) -> None:
        self.plan, self.worker, self.line, self.name = plan, worker, line, orders["name"]
        self.own_inputs = [port for port in orders["inputs"] if port["type"] != "tcp"]
        self.own_outputs = [port for port in orders["outputs"] if port["type"] != "tcp"]
        self.inputs = [port["worker"] for port in orders["inputs"] if port["type"] == "tcp"]
        self.targets = [port for port in orders["outputs"] if port["type"] == "tcp"]
        self.outputs = [port["worker"] for port in self.targets]
        if self.own_inputs and self.inputs:
            raise ValueError(f"{self.name} has streams and inputs of its own: make two workers of it")
        self.kept = Kept.load(plan, self.name)
        self.made, self.items, self.began = self.kept.made, 0, time.monotonic()
        self.checkpoints = _native.Checkpoints(os.path.join(plan.folder, "checkpoints"))

    def connect(self, door: _native.Door, ports: dict[str, int]) -> None:
        kept, plan = self.kept, self.plan
        ended = plan.finished
        orders = {
            "name": self.name,
            "attempt": plan.attempt,
            "inputs": [{"from": name, "processed": None if name in ended else kept.inputs.get(name, 0)} for name in self.inputs],
            "outputs": [
                {"to": port["worker"], "sent": kept.outputs.get(port["worker"], 0), "spill": port.get("spill", False)}
                for port in self.targets
            ],
            "window": plan.window,
            "checkpoint": plan.checkpoint,
            "spill": {"folder": plan.folder, "limit": plan.spill},
            "patience": plan.patience,
        }
        self.streams = _native.Streams(json.dumps(orders), door, plan.token, ports)
        groups: dict[str, tuple[str, list[int]]] = {}
        for at, port in enumerate(self.targets):
            how = port.get("how", "broadcast")
            groups.setdefault(port.get("group") or port["worker"], (how, []))[1].append(at)
        self.groups = list(groups.values())
        self.turns = [0] * len(self.groups)
        batch = max(16 << 10, min(256 << 10, plan.window // 4, (16 << 20) // max(1, len(self.targets))))
        self.outbox = _native.Outbox(self.streams, self.groups, batch)

    def run(self) -> None:
        """All items, from the first or from where the checkpoint was."""
        self.worker.start()
        self.worker.restore(self.kept.state)
        if self.own_inputs:
            made = itertools.chain.from_iterable(self.worker.input(port) for port in self.own_inputs)
            self.make(itertools.chain(self.worker.process(made), self.worker.finish()))
        else:
            self.pass_on()
            self.make(self.worker.finish())
        self.outbox.flush()

    def pass_on(self) -> None:
        """What streams bring."""
        receive, is_raw = self.streams.receive, self.worker.codec == "raw"
        while (came := receive()) is not None:
            if isinstance(came, int):
                self.cut(came)
                continue
            items = (came[1],) if is_raw else self.worker.deserialise(came[1])
            self.take(iter(self.worker.process(items)), None)

    def make(self, items: Iterable[Item]) -> None:
        """What comes from nowhere else. What was made before the checkpoint is made once more, and goes nowhere."""
        rest, done = itertools.islice(items, self.kept.made, None), False
        while not done:
            count, done = self.take(rest, LOOK)
            self.made += count
            while (checkpoint := self.streams.due()) is not None:
                self.cut(checkpoint)

    def take(self, items: Iterator[Item], seconds: float | None) -> tuple[int, bool]:
        """Hands items on, for that long: how many, and whether that was all."""
        if self.own_outputs or self.is_special():
            count, done = self.hand_over(items, seconds)
        else:
            count, done = self.outbox.extend(items, seconds)
        self.items += count
        return count, done

    def is_special(self) -> bool:
        return self.worker.codec == "raw" or type(self.worker).serialise is not Worker.serialise

    def hand_over(self, items: Iterator[Item], seconds: float | None) -> tuple[int, bool]:
        end, count = None if seconds is None else time.monotonic() + seconds, 0
        while chunk := list(itertools.islice(items, 1 if self.worker.codec == "raw" else CHUNK)):
            count += len(chunk)
            for port in self.own_outputs:
                self.worker.output(chunk, port)
            if self.groups and self.is_special():
                for group in range(len(self.groups)):
                    self.send(group, chunk)
            elif self.groups:
                self.outbox.extend(iter(chunk))
            if end is not None and time.monotonic() >= end:
                return count, False
        return count, True

    def send(self, group: int, items: list[Item]) -> None:
        """Through the user's own codec."""
        how, outputs = self.groups[group]
        if self.worker.codec == "raw":
            return self.send_batches(how, outputs, group, items)
        if how != "by-key":
            return self.send_batches(how, outputs, group, self.worker.serialise(items))
        for output, part in zip(outputs, self.worker.divide(items, len(outputs))):
            for batch in self.worker.serialise(part) if part else ():
                self.streams.send(output, batch)

    def send_batches(self, how: str, outputs: list[int], group: int, batches: Iterable[Any]) -> None:
        if how == "by-key" and len(outputs) > 1:
            raise TypeError(f"{self.name} yields batches, which have no key: have it yield pairs, or say `spread`")
        for batch in batches:
            if how == "spread":
                self.turns[group] = turn = (self.turns[group] + 1) % len(outputs)
                self.streams.send(outputs[turn], batch)
            else:
                for output in outputs:
                    self.streams.send(output, batch)

    def cut(self, checkpoint: int) -> None:
        """All before belongs to the checkpoint, all after does not."""
        self.outbox.flush()
        state = self.worker.snapshot()
        inputs, outputs = self.streams.barrier(checkpoint)
        kept = Kept(state, self.made, dict(zip(self.inputs, inputs)), dict(zip(self.outputs, outputs)))
        self.checkpoints.save(checkpoint, self.name, _native.encode([vars(kept)]))
        self.line.say(saved=checkpoint)

    def report(self) -> dict[str, Any]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "items": self.items,
            "made": self.made,
            "seconds": time.monotonic() - self.began,
            "processor": used.ru_utime + used.ru_stime,
            "memory": used.ru_maxrss * 1024,
            "streams": json.loads(self.streams.stats()),
        }


def main(plan: Plan, orders: dict[str, Any], make: Callable[[], Worker], line: Line) -> int:
    """What the process ends with: 0 when all is done, 3 when a peer went away, 1 else."""
    running = None
    try:
        door = _native.Door()
        line.say(ready=door.port)
        running = Running(plan, orders, make(), line)
        ports = first_word(line)
        running.connect(door, ports)
        threading.Thread(target=listen, args=(running,), daemon=True).start()
        running.run()
        result = running.worker.result()
        running.streams.finish()
        line.say(finished=running.report(), result=result)
        return 0
    except ConnectionError as error:
        line.say(lost=str(error))
        return 3
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"
        line.say(failed=why, trace=traceback.format_exc()[-30000:])
        if running is not None and hasattr(running, "streams"):
            running.streams.fail(why)
        return 1


def first_word(line: Line) -> dict[str, int]:
    while (messages := line.hear()) == []:
        pass
    if messages is None:
        raise ConnectionError("the job ended before its workers were there")
    ports: dict[str, int] = messages[0]["ports"]
    return ports


def listen(running: Running) -> None:
    """On a thread of its own: checkpoints that begin, and a word now and then on how far the worker is."""
    line = running.line
    while True:
        if select.select([line], [], [], WORD)[0]:
            messages = line.hear()
            if messages is None:
                os._exit(3)  # nobody is there to work for
            for message in messages:
                running.streams.trigger(message["checkpoint"])
        else:
            line.say(**running.report())
