"""Runs one job from the last checkpoint to its end, with a restart after each death, on any backend."""

import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from ._checkpoints import Checkpoints
from ._attempt import Restart, Attempt, WorkerRaised, WorkerState, Completed
from ._folder import claim, folder, stopped_by_signals
from ._graph import Graph, Stage, Topology
from ._scale_out import ScaleOut
from ._backend import Diagnosis, WorkerBackend, WorkerHandle, Plan
from ._renewals import StartLifetime, Renewals
from ._report import Report, StageReport
from ._results import Results
from ._progress_line import ProgressLine
from ._store import below, store
from ._settings import Job, JobFailed, Settings
from ._send_tracker import POLL_INTERVAL, SendTracker
from ._stalls import Stall, Stalls, progress_mark
from ._watch import Watch

# Seconds in which finished workers exit before they are stopped.
EXIT_GRACE = 5.0
# Workers that one check diagnoses, because each takes a moment.
MAX_DIAGNOSES = 5
_NO_PROGRESS_ADVICE = "let the source skip earlier items (`source(make, resumes=True)`), or use a place with a longer limit"


class Coordinator:
    """Runs one job. `make_backend` makes the backend of its workers."""

    def __init__(self, graph: Graph | Topology, settings: Settings, make_backend: Callable[[dict[str, Stage]], WorkerBackend]) -> None:
        self.settings, self.make_backend = settings, make_backend
        self.parts: dict[str, dict[str, Any]] = {part["name"]: part for part in graph.topology(settings.fan_in)["workers"]}
        self.stages = {name: graph.stages[part.get("stage") or name] for name, part in self.parts.items()}
        self.stage_names = {name: part.get("stage") or name for name, part in self.parts.items()}
        self.report = Report(stages={name: StageReport(stage.workers) for name, stage in graph.stages.items()})
        totals = [stage.total for stage in graph.stages.values() if not stage.before and stage.total]
        self.progress = ProgressLine(settings.progress, sum(totals) if totals else None)
        self.stalls = Stalls(settings.stall_report_timeout, settings.stall_timeout)
        self.renewals = Renewals(self.stage_names if settings.stragglers else None)
        self.handles: dict[str, WorkerHandle] = {}

    def run(self) -> Job:
        """Runs the job to its end. No process and no temporary folder stays, even after an error."""
        self.began = time.monotonic()
        with folder(self.settings.folder) as self.folder, stopped_by_signals() as self.check_signals:
            job = claim(self.folder, json.dumps(self.parts, sort_keys=True))
            self.backend = self.make_backend(self.stages)
            self.watch = Watch(self.settings.contact_timeout, self.settings.silence_timeout, self.backend.is_networked)
            self.results, self.send_tracker = Results(self.folder, self.backend.runs_here), SendTracker(self.backend.repeat_interval)
            self.report.place = self.backend.place
            try:
                self.store_url = self.job_store_url(job)
                with Checkpoints(store(self.store_url) if self.store_url else None, self.results) as self.checkpoints:
                    self.attempts()
                    self.stop_workers(self.handles)
                    return Job(self.results.take(self.parts), self.report)
            finally:
                self.stop_workers(self.handles)
                self.backend.close()
                self.progress.clear()

    def job_store_url(self, job: str) -> str | None:
        """Returns the URL of this job's own part of the store."""
        if self.settings.checkpoints:
            return below(self.settings.checkpoints, job)
        return None if self.backend.keeps_processes else os.path.join(self.folder, "checkpoints")

    def attempts(self) -> None:
        restart, number, deaths, max_restarts = Restart("the job begins"), 1, 0, self.settings.max_restarts(len(self.parts))
        while (outcome := self.attempt(number, restart)) is not None:
            restart, number, deaths = outcome, number + 1, deaths + outcome.is_death
            self.report.add_restart(restart)
            if deaths > max_restarts:
                raise JobFailed(f"gave up after {max_restarts} restarts; the last: {restart.why}")
        self.report.seconds, self.report.checkpoints = time.monotonic() - self.began, self.checkpoints.made

    # An attempt.

    def attempt(self, number: int, restart: Restart) -> Restart | None:
        """Runs one attempt. After the first one, an unreachable store costs one restart."""
        try:
            last = self.checkpoints.last()
        except ConnectionError as error:
            if number == 1:
                raise
            return Restart(f"the last checkpoint could not be read: {error}", restart.replaced)
        return self.run_attempt(self.begin(number, restart, *last))

    def begin(self, number: int, restart: Restart, checkpoint: int, states: set[str], finished: list[str]) -> Attempt:
        """Prepares an attempt from the last checkpoint. Kept processes go back to it; other workers are started."""
        initial = [name for name, part in self.parts.items() if not part.get("spare") or name in states]
        scale_out = ScaleOut.from_checkpoint(self.parts, states, finished)
        attempt = Attempt(number, checkpoint, finished, initial, time.monotonic(), scale_out, is_held=self.backend.keeps_processes)
        kept = {name for name, handle in self.handles.items() if self.backend.keeps_processes and not handle.is_leaving and handle.ended() is None}
        self.stop_workers(self.handles.keys() - (kept - restart.replaced).intersection(attempt.workers))
        self.results.load()
        self.plans: dict[str, Plan] = {}
        self.start(attempt, attempt.workers)
        self.watch.begin()
        self.stalls.begin()
        self.renewals.begin()
        return attempt

    def start(self, attempt: Attempt, names: Iterable[str]) -> None:
        self.plans |= {name: self.plan(attempt, name) for name in names}
        for name in names:
            if name not in self.handles:
                self.handles[name] = self.backend.start(self.plans[name])
        for name, stage in self.report.stages.items():
            stage.workers = max(stage.workers, sum(self.stage_names[other] == name for other in attempt.done.union(attempt.workers)))

    def plan(self, attempt: Attempt, name: str) -> Plan:
        part, settings = self.parts[name], self.settings
        stage_workers = [other for other in self.parts if self.stages[other] is self.stages[name]]
        reads = [port["worker"] for port in part["inputs"] if port["type"] == "tcp"]
        return Plan(
            part, stage_workers.index(name), len(stage_workers), attempt.number, attempt.checkpoint,
            tuple(other for other in reads if other in attempt.done), self.folder if self.backend.runs_here(name) else None, self.store_url,
            settings.window, settings.spill, settings.contact_timeout, attempt.scale_out.owner(name) if attempt.scale_out else None,
        )  # fmt: skip

    def run_attempt(self, attempt: Attempt) -> Restart | None:
        """Handles messages until all workers have finished or a restart is due."""
        try:
            while True:
                self.check_signals()
                self.receive(attempt)
                outcome = attempt.outcome(time.monotonic())
                if isinstance(outcome, WorkerRaised):
                    raise JobFailed(f"{outcome.worker} raised {outcome.why}", outcome.worker, outcome.trace)
                if isinstance(outcome, Restart):
                    return outcome
                if isinstance(outcome, Completed):
                    self.wait_ended(attempt)
                    return None
                interval = 0.0 if self.renewals.pending else self.settings.checkpoint_interval
                if restart := self.checkpoints.advance(attempt, time.monotonic(), interval) or self.renew(attempt):
                    return restart
                self.start(attempt, attempt.start_spares())
                self.send(attempt)
                self.show(attempt)
        finally:
            self.record_attempt(attempt)

    def receive(self, attempt: Attempt) -> None:
        """Takes messages and ends. A worker's last messages are read before its end is recorded."""
        for handle in self.poll():
            how, now = handle.ended(), time.monotonic()
            for message in handle.receive():
                attempt.receive(handle.name, message, now)
                self.watch.record_message(handle.name, now)
                if message.get("attempt") == attempt.number:
                    self.stalls.record(handle.name, progress_mark(message), now)
                    self.renewals.record(handle.name, message.get("report") or {}, bool(message.get("finished")), now)
            if handle.take_heartbeat():
                self.watch.record_message(handle.name, now)
            if how is not None and self.handles.get(handle.name) is handle:
                attempt.mark_ended(handle.name, how)
                self.record_start(handle, attempt.workers.get(handle.name))
        if self.watch.is_due(time.monotonic()):
            self.find_stuck(attempt)

    def find_stuck(self, attempt: Attempt) -> None:
        """Ends silent workers, and reports those without progress."""
        diagnoses = itertools.count()  # of both kinds together
        diagnose = lambda name: self.handles[name].diagnose() if next(diagnoses) < MAX_DIAGNOSES else Diagnosis()
        arrived = attempt.check_arrivals({name for name in attempt.workers if self.handles[name].has_reported})
        for name, why in self.watch.find_dead(arrived, self.backend.is_connected(), time.monotonic()).items():
            diagnosis = diagnose(name)
            attempt.mark_ended(name, ": ".join(filter(None, (why, diagnosis.state))))
            if diagnosis.stacks:
                self.log_stall(f"{name}: {why}", diagnosis)
        working = [worker.name for worker in attempt.workers.values() if worker.ready and not worker.finished and attempt.has_all_joined]
        for stall in self.stalls.find(working, time.monotonic()):
            self.handle_stall(attempt, stall, diagnose(stall.name))

    def handle_stall(self, attempt: Attempt, stall: Stall, diagnosis: Diagnosis) -> None:
        text = f"no progress for {stall.seconds:.0f} s"
        self.log_stall(f"{stall.name}: {text}", diagnosis)
        if stall.is_death:
            attempt.mark_ended(stall.name, f"{text}, the limit is {self.settings.stall_timeout:g} s")

    def log_stall(self, what: str, diagnosis: Diagnosis) -> None:
        """Writes to the job's log and report what a stuck worker does."""
        text = "\n".join(filter(None, (": ".join(filter(None, (what, diagnosis.state))), diagnosis.stacks.rstrip())))
        self.report.stalls.append(text)
        self.progress.clear()
        print(text, file=sys.stderr, flush=True)

    def poll(self) -> list[WorkerHandle]:
        try:
            return self.backend.poll(POLL_INTERVAL)
        except ConnectionError as error:
            raise JobFailed(f"the job has lost its rendezvous: {error}") from error

    def send(self, attempt: Attempt) -> None:
        """Sends new messages, and repeats those that may be lost."""
        now = time.monotonic()
        if not self.send_tracker.has_changes((attempt.number, attempt.pending, attempt.progress_state()), now):
            return
        for name, plan in self.plans.items():
            message = self.backend.message_for(attempt, plan)
            if message and name in self.handles and self.send_tracker.should_send(name, message, now):
                self.handles[name].is_leaving |= bool(message.get("end"))
                self.handles[name].send(message)

    def renew(self, attempt: Attempt) -> Restart | None:
        """Returns a restart for live workers that are slow or near their time limit."""
        if self.store_url is None or not self.backend.keeps_processes:
            return None
        unfinished = [worker.name for worker in attempt.workers.values() if not worker.finished]
        lifetimes = {name: StartLifetime(self.handles[name].started_at, self.handles[name].ends_at) for name in unfinished}
        restart = self.renewals.find_due(attempt, lifetimes, time.monotonic())
        if restart and not restart.is_slow and self.renewals.has_no_progress:
            raise JobFailed(f"{restart.why}, and no progress was made in its time: {_NO_PROGRESS_ADVICE}")
        return restart

    # Ends.

    def wait_ended(self, attempt: Attempt) -> None:
        """Waits up to EXIT_GRACE for finished workers to exit."""
        end = time.monotonic() + EXIT_GRACE
        self.send(attempt)
        while time.monotonic() < end and any(handle.ended() is None for handle in self.handles.values()):
            self.poll()

    def stop_workers(self, names: Iterable[str]) -> None:
        handles = [self.handles.pop(name) for name in list(names)]
        self.backend.stop_all(handles)
        for handle in handles:
            self.record_start(handle, None)
            self.send_tracker.forget(handle.name)
            self.watch.forget(handle.name)

    def record_start(self, handle: WorkerHandle, worker: WorkerState | None) -> None:
        """Records the cost of a start, once."""
        if worker and worker.report:
            handle.used_memory = worker.report["memory"] / 1e9
        if not handle.is_recorded:
            handle.is_recorded = True
            self.report.stages[self.stage_names[handle.name]].add_start(time.monotonic() - handle.started_at, handle.memory or handle.used_memory)

    def record_attempt(self, attempt: Attempt) -> None:
        """Adds the attempt's cost and output to the report."""
        self.results.record(attempt)
        for worker in attempt.workers.values():
            if worker.report:
                self.report.stages[self.stage_names[worker.name]].add(worker.report, worker.finished)
                self.report.set_paths(worker.name, worker.report)
                if handle := self.handles.get(worker.name):
                    handle.used_memory = worker.report["memory"] / 1e9

    def show(self, attempt: Attempt) -> None:
        sources = (worker for worker in attempt.workers.values() if not self.stages[worker.name].before)
        made = sum(worker.report["made"] for worker in sources if worker.report)
        finished = len(attempt.done) + sum(worker.finished for worker in attempt.workers.values())
        self.progress.show(time.monotonic() - self.began, made, finished, len(attempt.done) + len(attempt.workers))
