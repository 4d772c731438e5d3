"""Runs a worker that a place has started, from its orders to the end of the job.

A worker receives messages through the rendezvous. One process runs one attempt after the other, each with its own worker object and
streams. It ends after the job's end message, or without any message for `contact_timeout` seconds.
"""

import contextlib
import json
import os
import resource
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from . import _code, _native, _temporary
from ._code import Code
from ._attempt import ControlMessage
from ._graph import Stage
from ._backend import Plan
from ._run import WorkerRun, StateReporter, report_exception, work
from ._sealed import Seal

DONE, FAILED, LOST = 0, 1, 3
MAX_ORDERS_BYTES = 64 << 10
MAX_DESCRIPTORS = 1 << 16
# Seconds for flushing printed output before the process exits.
FLUSH_TIMEOUT = 0.5


@dataclass(frozen=True)
class Orders:
    """The orders that a worker starts with."""

    text: str = field(repr=False)
    job: str
    worker: str
    key: str = field(repr=False)  # seals the messages of this start
    code: Code
    mark: str
    rendezvous: Mapping[str, Any]
    leader: str
    contact_timeout: float
    repeat: float  # seconds between repeats of the state

    @classmethod
    def read(cls, orders: bytes) -> "Orders":
        if len(orders) > MAX_ORDERS_BYTES:
            raise ValueError(f"the orders have {len(orders)} bytes, at most {MAX_ORDERS_BYTES} are allowed")
        fields = json.loads(orders)
        if fields.get("version") != 1:
            raise ValueError(f"the orders have version {fields.get('version')!r}, expected 1: install the job's release of nearpath")
        return cls(
            orders.decode(), fields["job"], fields["worker"], fields["key"], Code.read(fields["code"]), fields["code"]["mark"],
            fields["rendezvous"], fields["leader"], fields["contact_timeout"], fields["repeat"],
        )  # fmt: skip


def run(orders: bytes, left: Callable[[], float] | None = None) -> int:
    """Works until the job ends. Returns 0 for success, 1 if the worker's code raised, 3 if it lost its job.

    `left` returns the remaining seconds of the place's limit. The loss of the job during user code ends the process, so each worker
    needs its own process.
    """
    raise_descriptor_limit()
    with _temporary.folder(_temporary.WORKER) as folder, contextlib.closing(Control(Orders.read(orders), left)) as control:
        return WorkerLoop(control, folder).run()


def raise_descriptor_limit() -> None:
    """Raises the limit of descriptors. Each edge's path search uses a dozen, and the usual limit is 1024."""
    now, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard_limit == resource.RLIM_INFINITY else min(MAX_DESCRIPTORS, hard_limit)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard_limit))


def exit_process(code: int) -> NoReturn:
    """Ends the process at once. Printed output is flushed and the temporary folders are removed."""
    with contextlib.suppress(RuntimeError):  # the interpreter is already shutting down
        flushing = threading.Thread(target=_flush, daemon=True)  # a stopped reader or a held stream lock would block
        flushing.start()
        flushing.join(FLUSH_TIMEOUT)
    _temporary.remove_all()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


class Control:
    """Exchanges messages with the job, on its own thread."""

    def __init__(self, orders: Orders, left: Callable[[], float] | None) -> None:
        self.orders, self._time_left, self._seal = orders, left, Seal.of_worker(orders.key)
        place = orders.rendezvous
        self.connection = _native.RendezvousConnection(place["place"], place["ticket"], place.get("trust"))
        self._state: ControlMessage = {"attempt": 0}
        self._plan: Plan | None = None
        self._running: WorkerRun | None = None
        self._has_ended, self._is_done = False, False
        self._changed, self._send_lock = threading.Condition(), threading.Lock()
        self._last_message_at = time.monotonic()
        threading.Thread(target=self._run, name="control", daemon=True).start()

    def close(self) -> None:
        self.connection.close()

    # Called on the worker's thread.

    def next_plan(self, attempt: int) -> Plan | None:
        """Waits for the plan after `attempt`. Returns None if the job no longer needs this worker."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or (self._plan is not None and self._plan.attempt > attempt))
            return None if self._has_ended else self._plan

    def begin(self, plan: Plan) -> StateReporter:
        """Returns the reporter of this attempt, which is valid until the next one begins."""
        self._is_done = False
        reporter = StateReporter(lambda state: self._set_state(plan.attempt, state), attempt=plan.attempt)
        reporter.change()
        return reporter

    def set_running(self, running: WorkerRun | None) -> None:
        """Sets the run that handles checkpoints and the end of the attempt."""
        with self._changed:
            self._running = running

    def mark_done(self) -> None:
        """Records that no worker code runs, so the process may exit by itself."""
        self._is_done = True

    def _set_state(self, attempt: int, state: ControlMessage) -> None:
        with self._changed:
            if self._plan and self._plan.attempt == attempt:
                self._state = dict(state)
        self._send_state()

    # Called on the control thread.

    def _send_state(self) -> None:
        """Sends the state. The lock keeps an older state from following a newer one."""
        with self._send_lock, contextlib.suppress(ConnectionError):  # the receiving thread reports the end
            message = dict(self._state)
            if self._time_left:
                message["left"] = round(self._time_left(), 1)
            self.connection.send(None, self._seal.close(message))

    def _run(self) -> None:
        try:
            self._exchange()
        except ConnectionError as error:  # expired ticket, or another start has replaced this one
            if not self._has_ended:
                print(f"{self.orders.worker} has lost its rendezvous: {error}", file=sys.stderr)
                exit_process(LOST)
        except BaseException:
            traceback.print_exc()
            exit_process(FAILED)

    def _exchange(self) -> None:
        """Reports first, because no worker begins before all have reported. Then receives until the end."""
        due = time.monotonic()
        while not self._has_ended:
            now = time.monotonic()
            if now - self._last_message_at > self.orders.contact_timeout:
                print(f"{self.orders.worker} received no message of its job for {now - self._last_message_at:.0f} s", file=sys.stderr)
                exit_process(LOST)
            if now >= due:
                due = now + self.orders.repeat
                self._report()
                self._send_state()
            for sender, text in self.connection.receive(max(0.0, due - now)):
                if sender == self.orders.leader and (message := self._seal.open(text)) is not None:
                    self._handle(message)

    def _handle(self, message: ControlMessage) -> None:
        self._last_message_at = time.monotonic()
        if message.get("end"):
            return self._finish()
        running, is_new = self._running, "plan" in message and message["attempt"] > (self._plan.attempt if self._plan else 0)
        is_superseded = running is not None and message["attempt"] > running.plan.attempt
        with self._changed:
            if is_new:
                self._plan = Plan(**message["plan"])
                self._changed.notify_all()
        if running and is_superseded and not running.failure:
            running.fail("the job returns to its last checkpoint")
        elif running and not is_new:
            running.handle(message)

    def _finish(self) -> None:
        """Handles the end message. A finished worker exits by itself; otherwise the process is ended."""
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
        if not self._is_done:
            exit_process(LOST)

    def _report(self) -> None:
        if running := self._running:
            running.reporter.change(report=running.report())


class WorkerLoop:
    """Runs one attempt after the other."""

    def __init__(self, control: Control, folder: str) -> None:
        self._control, self._folder = control, folder

    def run(self) -> int:
        attempt, code, stage = 0, LOST, None
        while (plan := self._control.next_plan(attempt)) is not None:
            attempt = plan.attempt
            reporter = self._control.begin(plan)
            try:
                stage = stage or self._stage(plan)
            except BaseException as error:
                report_exception(reporter, error)
                code = FAILED
            else:
                code = self._attempt(plan, stage, reporter)
            self._control.mark_done()
        return code

    def _stage(self, plan: Plan) -> Stage:
        """Returns this worker's stage. Raises RuntimeError if the code differs from the job's."""
        orders = self._control.orders
        _code.is_worker = True
        graph = orders.code.call()
        if _code.mark(graph) != orders.mark:
            raise RuntimeError(
                f"{orders.code.module}.{orders.code.name} makes another graph here than on the leader: "
                "install the same code on both, and let it depend on its arguments only"
            )
        return graph.stages[plan.part.get("stage") or plan.part["name"]]

    def _attempt(self, plan: Plan, stage: Stage, reporter: StateReporter) -> int:
        folder = plan.folder or os.path.join(self._folder, str(plan.attempt))
        os.makedirs(folder, exist_ok=True)
        running = None
        try:
            running = WorkerRun(replace(plan, folder=folder), stage.worker(), reporter)
            return work(running, lambda text: self._connect(running, text))
        except BaseException as error:
            report_exception(reporter, error)
            return FAILED
        finally:
            self._control.set_running(None)
            if running:
                running.release()
            if plan.folder is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _connect(self, running: WorkerRun, text: str) -> _native.Streams:
        orders = self._control.orders
        identity = json.dumps(json.loads(orders.text)["identity"])
        running.streams = streams = _native.Streams.connect_remote(text, self._control.connection, identity)
        self._control.set_running(running)
        return streams
