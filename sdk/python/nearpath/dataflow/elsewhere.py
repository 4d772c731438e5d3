"""A worker's life where a place has started it: from its orders to the end of the job.

A worker hears its job through the rendezvous. It takes part in one attempt after the other, each with a worker object and streams of
its own, in one process. It ends when the job says so, or when nothing has been heard of the job for too long.
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
from ._decide import Word
from ._graph import Stage
from ._members import Plan
from ._run import Running, Saying, raised, work
from ._sealed import Seal

DONE, FAILED, LOST = 0, 1, 3
LONGEST = 64 << 10
DESCRIPTORS = 1 << 16
# Who is ended has so many seconds for what it has printed.
FLUSH = 0.5


@dataclass(frozen=True)
class Orders:
    """What a worker is started with."""

    text: str = field(repr=False)
    job: str
    worker: str
    key: str = field(repr=False)  # of this start's words
    code: Code
    mark: str
    rendezvous: Mapping[str, Any]
    leader: str
    patience: float
    repeat: float  # seconds after which its state is said once more

    @classmethod
    def read(cls, orders: bytes) -> "Orders":
        if len(orders) > LONGEST:
            raise ValueError(f"orders of {len(orders)} bytes, {LONGEST} is the limit")
        given = json.loads(orders)
        if given.get("version") != 1:
            raise ValueError(f"orders of version {given.get('version')!r}, this is a worker for 1: install the job's nearpath here")
        return cls(
            orders.decode(), given["job"], given["worker"], given["key"], Code.read(given["code"]), given["code"]["mark"],
            given["rendezvous"], given["leader"], given["patience"], given["repeat"],
        )  # fmt: skip


def run(orders: bytes, left: Callable[[], float] | None = None) -> int:
    """Works until the job ends: 0 when it is through, 1 when its code raised, 3 when it lost its job.

    `left` says how many seconds the place still gives it. Ends the whole process where the job is gone while user code runs: give
    each worker a process of its own.
    """
    take_descriptors()
    with _temporary.folder(_temporary.WORKER) as folder, contextlib.closing(Control(Orders.read(orders), left)) as control:
        return Life(control, folder).live()


def take_descriptors() -> None:
    """As many as an edge's search for its direct way, a dozen each, can use: a thousand is what a process is given at first."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if most == resource.RLIM_INFINITY else min(DESCRIPTORS, most)
    if now != resource.RLIM_INFINITY and now < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def leave(code: int) -> NoReturn:
    """Ends the process at once, whatever the worker's code does; what it has printed comes out, and its folders go with it."""
    with contextlib.suppress(RuntimeError):  # Python ends by itself just now
        flushing = threading.Thread(target=_flush, daemon=True)  # whoever reads may stand still, and somebody else hold the stream
        flushing.start()
        flushing.join(FLUSH)
    _temporary.remove_all()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


class Control:
    """What the job says, and what it is told, on a thread of its own."""

    def __init__(self, orders: Orders, left: Callable[[], float] | None) -> None:
        self.orders, self._left, self._seal = orders, left, Seal.of_worker(orders.key)
        place = orders.rendezvous
        self.line = _native.Line(place["place"], place["ticket"], place.get("trust"))
        self._state: Word = {"attempt": 0}
        self._plan: Plan | None = None
        self._running: Running | None = None
        self._word: Word = {}
        self._is_over, self._is_through = False, False
        self._changed, self._saying = threading.Condition(), threading.Lock()
        self._heard = time.monotonic()
        threading.Thread(target=self._live, name="control", daemon=True).start()

    def close(self) -> None:
        self.line.close()

    # For the worker's own thread.

    def next_plan(self, attempt: int) -> Plan | None:
        """The one after that attempt, as soon as it is there. None: the job needs this worker no longer."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or (self._plan is not None and self._plan.attempt > attempt))
            return None if self._is_over else self._plan

    def begin(self, plan: Plan) -> Saying:
        """What the worker says of this attempt counts until the next one begins."""
        self._is_through = False
        saying = Saying(lambda state: self._say_of(plan.attempt, state), attempt=plan.attempt)
        saying.change()
        return saying

    def runs(self, running: Running | None) -> None:
        """Who is told of checkpoints, and that the attempt is over."""
        with self._changed:
            self._running = running

    def through(self) -> None:
        """Nothing of the worker's runs that would have to be ended."""
        self._is_through = True

    def _say_of(self, attempt: int, state: Word) -> None:
        with self._changed:
            if self._plan and self._plan.attempt == attempt:
                self._state = dict(state)
        self._say()

    # For this thread.

    def _say(self) -> None:
        """An older state never goes out behind a newer one."""
        with self._saying, contextlib.suppress(ConnectionError):  # heard of where it is listened
            word = dict(self._state)
            if self._left:
                word["left"] = round(self._left(), 1)
            self.line.say(None, self._seal.close(word))

    def _live(self) -> None:
        try:
            self._listen()
        except ConnectionError as error:  # its ticket is over, or somebody has taken its place
            if not self._is_over:
                print(f"{self.orders.worker} has lost its rendezvous: {error}", file=sys.stderr)
                leave(LOST)
        except BaseException:
            traceback.print_exc()
            leave(FAILED)

    def _listen(self) -> None:
        """Says first that it is there: nobody begins before."""
        due = time.monotonic()
        while not self._is_over:
            now = time.monotonic()
            if now - self._heard > self.orders.patience:
                print(f"{self.orders.worker} has heard nothing of its job for {now - self._heard:.0f} s", file=sys.stderr)
                leave(LOST)
            if now >= due:
                due = now + self.orders.repeat
                self._report()
                self._say()
            for sender, text in self.line.hear(max(0.0, due - now)):
                if sender == self.orders.leader and (word := self._seal.open(text)) is not None:
                    self._heed(word)

    def _heed(self, word: Word) -> None:
        self._heard = time.monotonic()
        if word.get("end"):
            return self._finish()
        running, is_new = self._running, "plan" in word and word["attempt"] > (self._plan.attempt if self._plan else 0)
        is_over = running is not None and word["attempt"] > running.plan.attempt
        with self._changed:
            if is_new:
                self._plan = Plan(**word["plan"])
                self._changed.notify_all()
        if running and is_over and not running.gone:
            running.give_up("the job goes back to its last checkpoint")
        elif running and not is_new:
            running.heed(word)

    def _finish(self) -> None:
        """The job needs this worker no longer. Who is through leaves by itself; who is not is ended in the midst of it."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if not self._is_through:
            leave(LOST)

    def _report(self) -> None:
        if running := self._running:
            running.said.change(report=running.report())


class Life:
    """One attempt after the other."""

    def __init__(self, control: Control, folder: str) -> None:
        self._control, self._folder = control, folder

    def live(self) -> int:
        attempt, code, stage = 0, LOST, None
        while (plan := self._control.next_plan(attempt)) is not None:
            attempt = plan.attempt
            said = self._control.begin(plan)
            try:
                stage = stage or self._stage(plan)
            except BaseException as error:
                raised(said, error)
                code = FAILED
            else:
                code = self._attempt(plan, stage, said)
            self._control.through()
        return code

    def _stage(self, plan: Plan) -> Stage:
        """The same code as the job's, or what it makes is not what the job asked for."""
        orders = self._control.orders
        _code.is_worker = True
        graph = orders.code.call()
        if _code.mark(graph) != orders.mark:
            raise RuntimeError(
                f"{orders.code.module}.{orders.code.name} makes another graph here than where the job was started: "
                "bring the same code to both, and have it depend on its arguments only"
            )
        return graph.stages[plan.part.get("stage") or plan.part["name"]]

    def _attempt(self, plan: Plan, stage: Stage, said: Saying) -> int:
        folder = plan.folder or os.path.join(self._folder, str(plan.attempt))
        os.makedirs(folder, exist_ok=True)
        running = None
        try:
            running = Running(replace(plan, folder=folder), stage.worker(), said)
            return work(running, lambda text: self._connect(running, text))
        except BaseException as error:
            raised(said, error)
            return FAILED
        finally:
            self._control.runs(None)
            if running:
                running.release()
            if plan.folder is None:
                shutil.rmtree(folder, ignore_errors=True)

    def _connect(self, running: Running, text: str) -> _native.Streams:
        orders = self._control.orders
        identity = json.dumps(json.loads(orders.text)["identity"])
        running.streams = streams = _native.Streams.over(text, self._control.line, identity)
        self._control.runs(running)
        return streams
