"""Runs one job: from the last checkpoint to the end, as often as somebody dies, with workers of any crew."""

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ._decide import Again, Attempt, Raised, Through
from ._folder import claim, folder, stopped_by_signals
from ._graph import Graph, Stage, Topology
from ._members import Crew, Member, Plan, Word
from ._report import Report, StageReport
from ._results import Results
from ._screen import Screen
from ._store import store

TICK = 0.1
# Workers that are through end so soon, or are ended.
FAREWELL = 5.0


class JobFailed(Exception):
    """A job that cannot go on. `worker` and `trace` say where, when a worker's code raised."""

    def __init__(self, why: str, worker: str | None = None, trace: str | None = None) -> None:
        super().__init__(why if trace is None else f"{why}\n\n{trace}")
        self.worker, self.trace = worker, trace


@dataclass
class Job:
    """A job that is through."""

    results: list[Any]
    report: Report


@dataclass
class Settings:
    """What `run` was asked for; its documentation says what each means."""

    folder: str | None
    every: float
    retries: int | None
    window: int
    spill: int
    patience: float
    fan_in: int | None
    progress: bool | None

    def bound(self, workers: int) -> int:
        """How many deaths a job of so many workers may have: some, and one in ten."""
        return 3 + workers // 10 if self.retries is None else self.retries


class Coordinator:
    """Runs one job. `gather` makes its crew."""

    def __init__(self, graph: Graph | Topology, settings: Settings, gather: Callable[[dict[str, Stage]], Crew]) -> None:
        self.settings, self.gather = settings, gather
        self.parts: dict[str, dict[str, Any]] = {part["name"]: part for part in graph.topology(settings.fan_in)["workers"]}
        self.stages = {name: graph.stages[part.get("stage") or name] for name, part in self.parts.items()}
        self.names = {name: part.get("stage") or name for name, part in self.parts.items()}
        self.report = Report(stages={name: StageReport(stage.workers) for name, stage in graph.stages.items()})
        totals = [stage.total for stage in graph.stages.values() if not stage.before and stage.total]
        self.screen = Screen(settings.progress, sum(totals) if totals else None, len(self.parts))
        self.members: dict[str, Member] = {}
        self.begun: dict[str, float] = {}
        self.words: dict[str, tuple[Word, float]] = {}
        self.spoken: object = None

    def run(self) -> Job:
        """Until it is through. Whatever happens, no process stays, and no folder that was not asked for."""
        self.began = time.monotonic()
        with folder(self.settings.folder) as self.folder, stopped_by_signals():
            claim(self.folder, json.dumps(self.parts, sort_keys=True))
            self.results, self.store_url = Results(self.folder), os.path.join(self.folder, "checkpoints")
            self.store, self.crew = store(self.store_url), self.gather(self.stages)
            try:
                self.attempts()
                return Job(self.results.take(self.parts), self.report)
            finally:
                self.dismiss(self.members)
                self.crew.close()
                self.screen.clear()

    def attempts(self) -> None:
        again, number, deaths, bound = Again("it begins"), 1, 0, self.settings.bound(len(self.parts))
        while (verdict := self.attend(self.begin(number, again))) is not None:
            again, number, deaths = verdict, number + 1, deaths + verdict.is_death
            self.report.restarts += [again.why] * again.is_death
            if deaths > bound:
                raise JobFailed(f"gave up after {bound} restarts; the last: {again.why}")
        self.report.seconds = time.monotonic() - self.began

    # An attempt.

    def begin(self, number: int, again: Again) -> Attempt:
        """From the last checkpoint on. Who is there goes back to it, where the crew stays; the others are started."""
        manifest = json.loads(self.store.latest() or '{"number": 0, "finished": []}')
        attempt = Attempt(number, int(manifest["number"]), manifest["finished"], self.parts, time.monotonic())
        stays = self.crew.stays
        self.dismiss([name for name in self.members if not stays or name in again.anew or name in attempt.done])
        self.dismiss([name for name, member in self.members.items() if member.ended() is not None])
        self.results.recall()
        for name in attempt.seen:
            if name not in self.members:
                self.begun[name] = time.monotonic()
                self.members[name] = self.crew.start(self.plan(attempt, name))
        return attempt

    def plan(self, attempt: Attempt, name: str) -> Plan:
        part, settings = self.parts[name], self.settings
        mates = [other for other in self.parts if self.stages[other] is self.stages[name]]
        reads = [port["worker"] for port in part["inputs"] if port["type"] == "tcp"]
        return Plan(
            part, mates.index(name), len(mates), attempt.number, attempt.checkpoint,
            tuple(other for other in reads if other in attempt.done), self.folder, self.store_url,
            settings.window, settings.spill, settings.patience,
        )  # fmt: skip

    def attend(self, attempt: Attempt) -> Again | None:
        """Hears workers until all are through, or must go back."""
        try:
            while True:
                self.hear(attempt)
                verdict = attempt.verdict(time.monotonic())
                if isinstance(verdict, Raised):
                    raise JobFailed(f"{verdict.worker} raised {verdict.why}", verdict.worker, verdict.trace)
                if isinstance(verdict, Again):
                    return verdict
                if isinstance(verdict, Through):
                    self.farewell()
                    return None
                self.care_for_checkpoints(attempt)
                self.speak(attempt)
                self.show(attempt)
        finally:
            self.count(attempt)

    def hear(self, attempt: Attempt) -> None:
        """Who ended is heard once more: its last words came before its end."""
        for member in self.crew.news(TICK):
            how = member.ended()
            for word in member.heard():
                attempt.hear(member.name, word, time.monotonic())
            if how is not None and self.members.get(member.name) is member:
                attempt.bury(member.name, how)

    def speak(self, attempt: Attempt) -> None:
        """To whom there is something new to say, or to say once more."""
        now, state = time.monotonic(), (attempt.number, attempt.all_ready, attempt.pending)
        if state == self.spoken and self.crew.repeat is None:
            return
        self.spoken = state
        for name, member in self.members.items():
            word, before = self.word(attempt, name), self.words.get(name)
            is_old = self.crew.repeat is not None and before is not None and now - before[1] >= self.crew.repeat
            if word and (before is None or before[0] != word or is_old):
                self.words[name] = word, now
                member.say(word)

    def word(self, attempt: Attempt, name: str) -> Word | None:
        """What the job says to one worker."""
        if not attempt.all_ready:
            return None
        to = [port["worker"] for port in self.parts[name]["outputs"] if port["type"] == "tcp"]
        ports = {other: attempt.seen[other].word.get("port") for other in to if other in attempt.seen}
        return {"attempt": attempt.number, "cut": attempt.pending, "ports": ports}

    # Checkpoints.

    def care_for_checkpoints(self, attempt: Attempt) -> None:
        attempt.begin(time.monotonic(), self.settings.every)
        if (parts := attempt.complete()) is not None:
            for seen in attempt.seen.values():
                self.remember(seen.name, seen.word)
            self.results.save()
            self.store.complete(attempt.pending, *parts)
            attempt.completed(time.monotonic())
            self.report.checkpoints += 1

    def remember(self, name: str, word: Word) -> None:
        """What a worker that is through has made."""
        if word.get("finished"):
            self.results.add(name, word.get("result"))

    # Ends.

    def farewell(self) -> None:
        """All is done: processes end by themselves."""
        end = time.monotonic() + FAREWELL
        while time.monotonic() < end and any(member.ended() is None for member in self.members.values()):
            self.crew.news(TICK)

    def dismiss(self, names: Iterable[str]) -> None:
        for name in list(names):
            member = self.members.pop(name)
            member.stop()
            self.words.pop(name, None)

    def count(self, attempt: Attempt) -> None:
        """What an attempt took, and what it made, belongs in the report."""
        for seen in attempt.seen.values():
            self.remember(seen.name, seen.word)
            if seen.report:
                self.report.stages[self.names[seen.name]].add(seen.report, seen.finished)
                self.report.took(seen.name, seen.report)

    def show(self, attempt: Attempt) -> None:
        sources = (seen for seen in attempt.seen.values() if not self.stages[seen.name].before)
        made = sum(seen.report["made"] for seen in sources if seen.report)
        finished = len(attempt.done) + sum(seen.finished for seen in attempt.seen.values())
        self.screen.show(time.monotonic() - self.began, made, finished)
