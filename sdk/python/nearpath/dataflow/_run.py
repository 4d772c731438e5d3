"""One attempt of one worker, in its own process: from a plan to the last acknowledgement."""

import contextlib
import itertools
import json
import os
import resource
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from . import _native
from ._attempt import ControlMessage
from ._scale_out import ScaleOutRequests
from ._backend import Plan
from ._item_writer import ItemWriter
from ._store import store
from ._workers import Item, Worker

# Seconds between two checks for a checkpoint, in workers that make their items.
CHECK_INTERVAL = 0.05
# Bounds of an exception's text and trace: both must fit into one control message.
MAX_REASON_CHARS, MAX_TRACE_CHARS = 2000, 30000


class StateReporter:
    """Sends a worker's whole state to its job after each change."""

    def __init__(self, send: Callable[[ControlMessage], None], **state: Any) -> None:
        self._send, self._state, self._lock = send, state, threading.Lock()

    def change(self, **state: Any) -> None:
        with self._lock:
            self._state.update(state)
            self._send(self._state)


@dataclass
class WorkerSnapshot:
    """The state of one worker in a checkpoint."""

    state: Any = None
    made: int = 0
    inputs: dict[str, int | None] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)
    granted: dict[str, int] = field(default_factory=dict)  # granted workers by stage
    answers: list[int] = field(default_factory=list)  # results of calls of grow that are repeated


class WorkerRun:
    """One worker and its streams."""

    def __init__(self, plan: Plan, worker: Worker, reporter: StateReporter) -> None:
        self.plan, self.worker, self.reporter = plan, worker, reporter
        worker.name, worker.number, worker.of, worker.folder = plan.part["name"], plan.number, plan.of, plan.folder or ""
        self.own_inputs = [port for port in plan.part["inputs"] if port["type"] != "tcp"]
        self.inputs = [port["worker"] for port in plan.part["inputs"] if port["type"] == "tcp"]
        self.targets = [port for port in plan.part["outputs"] if port["type"] == "tcp"]
        if self.own_inputs and self.inputs:
            raise ValueError(f"{worker.name} has both streams and other inputs: split it into two workers")
        self.snapshot, self.scale_out = WorkerSnapshot(), ScaleOutRequests(self.targets, self.inputs, reporter.change)
        worker._request_workers = self.scale_out.request  # type: ignore[method-assign]
        self.store = None if plan.store is None else store(plan.store)
        self.made, self.items, self.began, self.used = 0, 0, time.monotonic(), _processor_seconds()
        self.skip = 0  # repeated items to skip
        self.work, self.steps, self.finishing, self.started = 0, 0, False, self.began
        self.streams: _native.Streams | None = None
        self._triggered, self.failure = 0, ""

    def load_snapshot(self) -> None:
        """Loads the worker's state from the checkpoint."""
        if self.plan.checkpoint and self.store and not self.plan.owner:  # a spare worker started after the checkpoint
            with _store_is_a_peer():
                saved = self.store.load(self.plan.checkpoint, self.worker.name)
            (snapshot,) = _native.decode(saved)
            self.snapshot = WorkerSnapshot(**snapshot)
            self.made = self.skip = self.snapshot.made

    def stream_assignment(self) -> str:
        """Returns the assignment of the worker's streams, as JSON."""
        plan = self.plan
        inputs = [self._input(port) for port in self.plan.part["inputs"] if port["type"] == "tcp"]
        outputs = [self._output(port) for port in self.targets]
        spill = {"folder": plan.folder, "limit": plan.spill}
        stream_assignment = {"name": self.worker.name, "attempt": plan.attempt, "inputs": inputs, "outputs": outputs, "spill": spill}
        return json.dumps({**stream_assignment, "window": plan.window, "checkpoint": plan.checkpoint, "connect_timeout": plan.contact_timeout})

    def _input(self, port: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an input's assignment. A spare worker reads only its owner; streams without a barrier open later."""
        name, owner = port["worker"], self.plan.owner
        processed = self.snapshot.inputs.get(name, 0)
        if name in self.plan.ended or owner not in (None, name):
            processed = None
        return {"from": name, "processed": processed, "pending": owner is None and processed == 0 and port.get("pending", False)}

    def _output(self, port: Mapping[str, Any]) -> dict[str, Any]:
        sent = self.snapshot.outputs.get(port["worker"], 0)
        later = sent == 0 and port.get("pending", False)
        return {"to": port["worker"], "sent": sent, "spill": port.get("spill", False), "pending": later}

    def run(self, streams: _native.Streams) -> None:
        """Processes all items, from the first one or from the checkpoint."""
        self.streams, self.writer = streams, ItemWriter(self.worker, streams, self.plan.part["outputs"], self.plan.window)
        self.worker._flush_items = self.writer.flush  # type: ignore[method-assign]
        self.worker.start()
        self.worker.restore(self.snapshot.state)
        self.started = time.monotonic()
        self.scale_out.resume(self.snapshot.granted, self.snapshot.answers, self.snapshot.outputs)
        if self.own_inputs:
            if omitted := self.worker.resume(self.skip):
                self.skip -= omitted
                self.scale_out.discard_recorded_calls()
            made = itertools.chain.from_iterable(self.worker.input(port) for port in self.own_inputs)
            self.emit(itertools.chain(self.worker.process(made), self.worker.finish()))
        else:
            self.process_streams(streams)
            self.emit(self.worker.finish())
        self.wait_for_workers(streams)
        self.writer.flush()
        self.result = self.worker.result()
        streams.finish()

    def process_streams(self, streams: _native.Streams) -> None:
        """Processes the batches of the streams."""
        receive, is_raw = streams.receive, self.worker.codec == "raw"
        while (received := receive()) is not None:
            if isinstance(received, int):
                self.take_checkpoint(received)
                continue
            items = (received[1],) if is_raw else self.worker.deserialise(received[1])
            self.items += self.writer.write_items(iter(self.worker.process(items)), None)[0]
            self.worker.forget_batch()
            self.work, self.steps = self.work + len(received[1]), self.steps + 1
        self.finishing = True

    def emit(self, items: Iterable[Item]) -> None:
        """Sends items that the worker makes. Items from before the checkpoint are made again and skipped."""
        remaining, is_done = itertools.islice(items, self.skip, None), False
        self.scale_out.answers = []
        while not is_done:
            count, is_done = self.writer.write_items(remaining, CHECK_INTERVAL)
            self.items, self.made, self.steps = self.items + count, self.made + count, self.steps + 1
            self.work += count if self.own_inputs else 0
            if self.failure:  # streams report failures only to sends, and a batch may last long
                raise _native.PeerLostError(self.failure)
            self.checkpoint_if_due()

    def wait_for_workers(self, streams: _native.Streams) -> None:
        """Waits for all requested workers, because their streams end with this worker's."""
        while not self.scale_out.has_all_granted(streams):
            self.scale_out.wait(CHECK_INTERVAL)
            self.checkpoint_if_due()

    def checkpoint_if_due(self) -> None:
        while self.streams and (checkpoint := self.streams.take_due_barrier()) is not None:
            self.take_checkpoint(checkpoint)

    def take_checkpoint(self, checkpoint: int) -> None:
        """Saves the state for the checkpoint and sends a barrier after all earlier items."""
        assert self.streams and self.store, "a checkpoint needs streams and a store"
        self.writer.flush()
        state = self.worker.snapshot()
        inputs, outputs = self.streams.send_barrier(checkpoint)
        names = [port["worker"] for port in self.targets]
        positions = dict(zip(self.inputs, inputs)), dict(zip(names, outputs))
        snapshot = WorkerSnapshot(state, self.made, *positions, self.scale_out.granted, self.scale_out.answers or [])
        with _store_is_a_peer():
            mark = self.store.save(checkpoint, self.worker.name, _native.encode([vars(snapshot)]))
        self.reporter.change(saved=checkpoint, mark=mark)

    def release(self) -> None:
        """Drops the streams before the next attempt opens its own."""
        self.streams = None
        vars(self).pop("writer", None)
        vars(self.worker).pop("_flush_items", None)

    # Called on the thread that receives the job's messages.

    def handle(self, message: ControlMessage) -> None:
        """Handles a message. A repeated request begins a checkpoint only once."""
        if (streams := self.streams) and "scale_out" in message:
            self.scale_out.handle(streams, message["scale_out"], message.get("ports", {}))
        if streams and message.get("checkpoint", 0) > self._triggered:
            self._triggered = message["checkpoint"]
            streams.trigger_checkpoint(self._triggered)

    def fail(self, why: str) -> None:
        self.failure = why
        self.scale_out.fail(why)
        if streams := self.streams:
            streams.fail(why)

    def report(self) -> dict[str, Any]:
        """Returns the worker's progress and cost in this attempt."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        now, streams = time.monotonic(), self.streams
        report: dict[str, Any] = {
            "items": self.items,
            "made": self.made,
            "seconds": now - self.began,
            "processor": _processor_seconds() - self.used,
            "memory": used.ru_maxrss * 1024,
        }
        if not streams:
            return report
        summary = _summary(json.loads(streams.stats()))
        written = self.writer.items if "writer" in vars(self) else 0
        report["progress"] = [self.steps, self.items, written, self.worker.position(), summary["waited_for_input"], summary["waited_for_room"]]
        working = max(0.0, now - self.started - summary["waited_for_input"] - summary["waited_for_room"])
        pace = {"work": self.work, "steps": self.steps, "working": working, "finishing": self.finishing}
        return {**report, **summary, **pace}


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _summary(stats: dict[str, Any]) -> dict[str, Any]:
    """Sums the statistics of all streams, because a worker may report hundreds of them each second."""
    paths: dict[str, int] = {}
    for edge in stats["outputs"]:
        if path := edge.get("path", "local"):  # null without a stream
            paths[path] = paths.get(path, 0) + 1
    return {
        "bytes_in": sum(edge["bytes"] for edge in stats["inputs"]),
        "bytes_out": sum(edge["bytes"] for edge in stats["outputs"]),
        "spilled": sum(edge["spilled"] for edge in stats["outputs"]),
        "waited_for_input": stats["waited_for_input"],
        "waited_for_room": stats["waited_for_room"],
        "paths": paths,
    }


def work(running: WorkerRun, connect: Callable[[str], _native.Streams]) -> int:
    """Runs one attempt and reports its end. Returns 0 for success, 1 for an exception, 3 for a lost peer or store."""
    try:
        running.load_snapshot()
        running.run(connect(running.stream_assignment()))
        running.reporter.change(report=running.report(), finished=True, result=running.result)
        return 0
    except _native.PeerLostError as error:
        running.reporter.change(lost=str(error))
        return 3
    except BaseException as error:
        running.worker.describe_item(error)
        report_exception(running.reporter, error)
        with contextlib.suppress(Exception):
            running.fail(f"{type(error).__name__}: {error}")
        return 1


@contextlib.contextmanager
def _store_is_a_peer() -> Iterator[None]:
    """A store that cannot be reached is lost like a worker: another attempt may succeed."""
    try:
        yield
    except ConnectionError as error:
        raise _native.PeerLostError(str(error)) from error


def _user_frames(error: BaseException) -> TracebackType | None:
    """Returns the traceback from the first frame of the user's code; all of it if there is none."""
    own = os.path.dirname(os.path.dirname(__file__)) + os.sep
    frame = error.__traceback__
    while frame and frame.tb_frame.f_code.co_filename.startswith(own):
        frame = frame.tb_next
    return frame or error.__traceback__


def report_exception(reporter: StateReporter, error: BaseException) -> None:
    """Reports an exception of the worker's code. A retry cannot help."""
    trace = "".join(traceback.format_exception(error.with_traceback(_user_frames(error))))
    reporter.change(failed={"reason": f"{type(error).__name__}: {error}"[:MAX_REASON_CHARS], "trace": trace[-MAX_TRACE_CHARS:]})
