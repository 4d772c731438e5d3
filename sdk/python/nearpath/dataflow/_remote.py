"""Workers started by places, which exchange messages through the rendezvous."""

import contextlib
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from . import _native, _temporary
from ._code import Code
from ._attempt import Attempt, ControlMessage
from ._graph import Stage
from ._backend import WorkerBackend, WorkerHandle, Plan
from ._places import Place, Started
from ._processes import Processes
from ._sealed import Seal, new_key
from .remote_worker import MAX_ORDERS_BYTES

LEADER = "leader"
# Validity of a start's certificates and tickets, s. The start is replaced before they expire.
START_LIFETIME = 7 * 24 * 3600.0
# Validity of the job's own credentials, s: longer than any job. They stay in this process.
JOB_LIFETIME = 365 * 24 * 3600.0
# Repeats use a tenth of the 1000 messages per second that the rendezvous accepts from a connection.
MAX_MESSAGES_PER_SECOND = 100
# Repeats of a message within the silence timeout. A repeat compensates for a lost message.
REPEATS_PER_SILENCE = 10
# Seconds from the end message until the place stops the worker.
STOP_GRACE = 1.0


@dataclass(frozen=True)
class Rendezvous:
    """The rendezvous server's address and credentials."""

    place: str
    key: bytes = field(repr=False)
    trust: str | None = None  # authorities as PEM; None: the system's

    def ticket(self, job: str, worker: str, leader: bool = False) -> dict[str, Any]:
        ticket = _native.issue_ticket(self.key, job, worker, leader, JOB_LIFETIME if leader else START_LIFETIME)
        return {"place": self.place, "ticket": ticket, "trust": self.trust}


class RemoteWorker(WorkerHandle):
    """One start of one worker at a place."""

    def __init__(self, name: str, key: str, place: Place, started: Started, send: Callable[[str, str], None]) -> None:
        super().__init__(name)
        self.memory, self._seal = place.memory, Seal.of_job(key)
        self.ends_at = self.started_at + min(place.limit, START_LIFETIME)
        self._started, self._send, self._messages = started, send, list[ControlMessage]()
        self._end: str | None = None

    def send(self, message: ControlMessage) -> None:
        self._send(self.name, self._seal.close(message))

    def accept(self, text: str) -> bool:
        """Takes a message and returns whether this start sent it. Other senders fail the authentication."""
        if (message := self._seal.open(text)) is None:
            return False
        self._messages.append(message)
        self.has_reported = True
        if (left := message.get("left")) is not None:
            self.ends_at = min(self.ends_at, time.monotonic() + left)
        return True

    def receive(self) -> list[ControlMessage]:
        messages, self._messages = self._messages, []
        return messages

    def ended(self) -> str | None:
        if self._end is None:
            self._end = self._started.ended()
        return self._end

    def wait(self, seconds: float) -> None:
        """Waits up to `seconds` for the end of the worker."""
        if self.ended() is None:
            self._end = self._started.wait(max(0.0, seconds))

    def stop(self) -> None:
        self._started.stop()


class RemoteBackend(WorkerBackend):
    """Starts each worker of a job at its place."""

    keeps_processes = True
    is_networked = True

    def __init__(
        self,
        code: Code,
        mark: str,
        stages: Mapping[str, Stage],
        place: Place,
        rendezvous: Rendezvous,
        contact_timeout: float,
        silence_timeout: float,
    ) -> None:
        self.place = place.name
        self._local = {name for name, stage in stages.items() if stage.where == "here"}
        here = Processes()
        places = {name: here if name in self._local else place for name in stages}
        self._code, self._places, self._rendezvous, self._contact_timeout = {**code.to_dict(), "mark": mark}, places, rendezvous, contact_timeout
        self._worker_repeat = silence_timeout / REPEATS_PER_SILENCE
        self.repeat_interval = max(self._worker_repeat, len(places) / MAX_MESSAGES_PER_SECOND)
        self.job = f"{code.name.lower().replace('_', '-')[:50]}-{secrets.token_hex(4)}"
        self._handles: dict[str, RemoteWorker] = {}
        self._authority = _native.Authority(self.job, JOB_LIFETIME)
        ticket = rendezvous.ticket(self.job, LEADER, leader=True)
        self._connection = _native.RendezvousConnection(ticket["place"], ticket["ticket"], ticket["trust"])
        try:
            if not self._connection.wait(contact_timeout):
                raise ConnectionError(f"no rendezvous at {rendezvous.place} within {contact_timeout:g} s: start it (nearpath rendezvous)")
        except BaseException:
            self.close()
            raise

    def is_connected(self) -> bool:
        with contextlib.suppress(ConnectionError):  # the receiving side reports the end
            return self._connection.wait(0.0)
        return False

    def start(self, plan: Plan) -> RemoteWorker:
        name, key = plan.part["name"], new_key()
        place = self._places[name]
        started = place.start(name, self._orders(name, key))
        self._handles[name] = RemoteWorker(name, key, place, started, self._send)
        return self._handles[name]

    def _orders(self, name: str, key: str) -> bytes:
        orders = {
            "version": 1,
            "job": self.job,
            "worker": name,
            "key": key,
            "code": self._code,
            "rendezvous": self._rendezvous.ticket(self.job, name),
            "identity": json.loads(self._authority.issue_identity(name, START_LIFETIME)),
            "leader": LEADER,
            "contact_timeout": self._contact_timeout,
            "repeat": self._worker_repeat,
        }
        text = json.dumps(orders).encode()
        if len(text) > MAX_ORDERS_BYTES:
            advice = "shorten the job's arguments, or use a `trust` with fewer certificates"
            raise ValueError(f"the orders have {len(text)} bytes, at most {MAX_ORDERS_BYTES} are allowed: {advice}")
        return text

    def message_for(self, attempt: Attempt, plan: Plan) -> ControlMessage | None:
        """Returns the plan until the worker has joined, then changes only.

        Workers begin together, because calls to absent peers would delay those that join.
        """
        worker = attempt.workers.get(plan.part["name"])
        if worker is None or worker.finished:
            return {"end": True}
        if attempt.is_held:
            return {"attempt": attempt.number}
        if not worker.ready:
            return {"attempt": attempt.number, "plan": vars(plan)}
        return {"attempt": attempt.number, "checkpoint": attempt.pending, **attempt.scale_out_message(worker.name)}

    def _send(self, name: str, text: str) -> None:
        with contextlib.suppress(ConnectionError):  # the receiving side reports the end
            self._connection.send(name, text)

    def poll(self, seconds: float) -> list[WorkerHandle]:
        changed: dict[str, RemoteWorker] = {}
        for sender, text in self._connection.receive(seconds):
            handle = self._handles.get(sender)
            if handle and handle.accept(text):
                changed[sender] = handle
        changed |= {name: handle for name, handle in self._handles.items() if handle.ended() is not None}
        return list(changed.values())

    def runs_here(self, name: str) -> bool:
        return name in self._local

    def stop_all(self, handles: Sequence[WorkerHandle]) -> None:
        """Sends the end message, waits for STOP_GRACE and then stops the workers."""
        end = time.monotonic() + STOP_GRACE
        for handle in handles:
            handle.send({"end": True})
        for handle in handles:
            self._handles[handle.name].wait(end - time.monotonic())
        for handle in handles:
            handle.stop()

    def close(self) -> None:
        self._connection.close()
        for place in set(self._places.values()):
            place.close()
        _temporary.sweep(_temporary.WORKER)  # removes folders of killed workers
