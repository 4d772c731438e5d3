"""Runs one job: from the last checkpoint to the end, as often as somebody dies, with workers of any crew."""

import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from ._checkpoints import Checkpoints
from ._decide import Again, Attempt, Raised, Seen, Through
from ._folder import claim, folder, stopped_by_signals
from ._graph import Graph, Stage, Topology
from ._growing import Growth
from ._members import Crew, Member, Plan
from ._renewals import Life, Renewals
from ._report import Report, StageReport
from ._results import Results
from ._screen import Screen
from ._store import below, store
from ._terms import Job, JobFailed, Settings
from ._told import TICK, Told
from ._watch import Watch

# Workers that are through end so soon, or are ended.
FAREWELL = 5.0
_VAIN = "let its source leave out what it has made before (`source(make, resumes=True)`), or take a place with a longer limit"


class Coordinator:
    """Runs one job. `gather` makes its crew."""

    def __init__(self, graph: Graph | Topology, settings: Settings, gather: Callable[[dict[str, Stage]], Crew]) -> None:
        self.settings, self.gather = settings, gather
        self.parts: dict[str, dict[str, Any]] = {part["name"]: part for part in graph.topology(settings.fan_in)["workers"]}
        self.stages = {name: graph.stages[part.get("stage") or name] for name, part in self.parts.items()}
        self.names = {name: part.get("stage") or name for name, part in self.parts.items()}
        self.report = Report(stages={name: StageReport(stage.workers) for name, stage in graph.stages.items()})
        totals = [stage.total for stage in graph.stages.values() if not stage.before and stage.total]
        self.screen = Screen(settings.progress, sum(totals) if totals else None)
        self.watch = Watch(settings.patience, settings.silence)
        self.renewals = Renewals(self.names if settings.stragglers else None)
        self.members: dict[str, Member] = {}

    def run(self) -> Job:
        """Until it is through. Whatever happens, no process stays, and no folder that was not asked for."""
        self.began = time.monotonic()
        with folder(self.settings.folder) as self.folder, stopped_by_signals() as self.stopped:
            job = claim(self.folder, json.dumps(self.parts, sort_keys=True))
            self.crew = self.gather(self.stages)
            self.results, self.told = Results(self.folder, self.crew.is_here), Told(self.crew.repeat)
            self.report.place = self.crew.place
            try:
                self.place = self.store_of(job)
                with Checkpoints(store(self.place) if self.place else None, self.results) as self.checkpoints:
                    self.attempts()
                    self.dismiss(self.members)
                    return Job(self.results.take(self.parts), self.report)
            finally:
                self.dismiss(self.members)
                self.crew.close()
                self.screen.clear()

    def store_of(self, job: str) -> str | None:
        """A part of the store that is this job's own, whoever else keeps checkpoints there."""
        if self.settings.checkpoints:
            return below(self.settings.checkpoints, job)
        return None if self.crew.stays else os.path.join(self.folder, "checkpoints")

    def attempts(self) -> None:
        again, number, deaths, bound = Again("it begins"), 1, 0, self.settings.bound(len(self.parts))
        while (verdict := self.attempt(number, again)) is not None:
            again, number, deaths = verdict, number + 1, deaths + verdict.is_death
            self.report.again(again)
            if deaths > bound:
                raise JobFailed(f"gave up after {bound} restarts; the last: {again.why}")
        self.report.seconds, self.report.checkpoints = time.monotonic() - self.began, self.checkpoints.made

    # An attempt.

    def attempt(self, number: int, again: Again) -> Again | None:
        """A store that has been there, and is away for longer than its tries, costs one."""
        try:
            last = self.checkpoints.last()
        except ConnectionError as error:
            if number == 1:
                raise
            return Again(f"where the last checkpoint is could not be read: {error}", again.anew)
        return self.attend(self.begin(number, again, *last))

    def begin(self, number: int, again: Again, checkpoint: int, states: set[str], finished: list[str]) -> Attempt:
        """From the last checkpoint on. Who is there goes back to it, where the crew stays; the others are started."""
        there = [name for name, part in self.parts.items() if not part.get("spare") or name in states]
        growth = Growth.of(self.parts, states, finished)
        attempt = Attempt(number, checkpoint, finished, there, time.monotonic(), growth, is_held=self.crew.stays)
        stay = {name for name, member in self.members.items() if self.crew.stays and not member.is_leaving and member.ended() is None}
        self.dismiss(self.members.keys() - (stay - again.anew).intersection(attempt.seen))
        self.results.recall()
        self.plans: dict[str, Plan] = {}
        self.start(attempt, attempt.seen)
        self.watch.begin()
        self.renewals.begin()
        return attempt

    def start(self, attempt: Attempt, names: Iterable[str]) -> None:
        self.plans |= {name: self.plan(attempt, name) for name in names}
        for name in names:
            if name not in self.members:
                self.members[name] = self.crew.start(self.plans[name])
        for name, stage in self.report.stages.items():
            stage.workers = max(stage.workers, sum(self.names[other] == name for other in attempt.done.union(attempt.seen)))

    def plan(self, attempt: Attempt, name: str) -> Plan:
        part, settings = self.parts[name], self.settings
        mates = [other for other in self.parts if self.stages[other] is self.stages[name]]
        reads = [port["worker"] for port in part["inputs"] if port["type"] == "tcp"]
        return Plan(
            part, mates.index(name), len(mates), attempt.number, attempt.checkpoint,
            tuple(other for other in reads if other in attempt.done), self.folder if self.crew.is_here(name) else None, self.place,
            settings.window, settings.spill, settings.patience, attempt.growth.owner(name) if attempt.growth else None,
        )  # fmt: skip

    def attend(self, attempt: Attempt) -> Again | None:
        """Hears workers until all are through, or must go back."""
        try:
            while True:
                self.stopped()
                self.hear(attempt)
                verdict = attempt.verdict(time.monotonic())
                if isinstance(verdict, Raised):
                    raise JobFailed(f"{verdict.worker} raised {verdict.why}", verdict.worker, verdict.trace)
                if isinstance(verdict, Again):
                    return verdict
                if isinstance(verdict, Through):
                    self.farewell(attempt)
                    return None
                every = 0.0 if self.renewals.wanted else self.settings.every
                if again := self.checkpoints.care(attempt, time.monotonic(), every) or self.renew(attempt):
                    return again
                self.start(attempt, attempt.grow())
                self.speak(attempt)
                self.show(attempt)
        finally:
            self.count(attempt)

    def hear(self, attempt: Attempt) -> None:
        """Who ended is heard once more: its last words came before its end."""
        for member in self.news():
            how, now = member.ended(), time.monotonic()
            for word in member.heard():
                attempt.hear(member.name, word, now)
                self.watch.heard(member.name, now)
                if word.get("attempt") == attempt.number:
                    self.renewals.note(member.name, word.get("report") or {}, bool(word.get("finished")), now)
            if how is not None and self.members.get(member.name) is member:
                attempt.bury(member.name, how)
                self.settle(member, attempt.seen.get(member.name))
        if self.crew.stays:
            here = attempt.gather({name for name in attempt.seen if self.members[name].is_heard})
            for name, why in self.watch.look(here, self.crew.hears(), time.monotonic()).items():
                attempt.bury(name, why)

    def news(self) -> list[Member]:
        try:
            return self.crew.news(TICK)
        except ConnectionError as error:
            raise JobFailed(f"the job has lost its rendezvous for good: {error}") from error

    def speak(self, attempt: Attempt) -> None:
        """To whom there is something new to say, or to say once more."""
        now = time.monotonic()
        if not self.told.may_be_new((attempt.number, attempt.pending, attempt.stand()), now):
            return
        for name, plan in self.plans.items():
            word = self.crew.word(attempt, plan)
            if word and name in self.members and self.told.tells(name, word, now):
                self.members[name].is_leaving |= bool(word.get("end"))
                self.members[name].say(word)

    def renew(self, attempt: Attempt) -> Again | None:
        """Whoever is to be started anew though it lives."""
        if self.place is None or not self.crew.stays:
            return None
        going = [seen.name for seen in attempt.seen.values() if not seen.finished]
        lives = {name: Life(self.members[name].begun, self.members[name].end) for name in going}
        again = self.renewals.look(attempt, lives, time.monotonic())
        if again and not again.is_slow and self.renewals.is_vain:
            raise JobFailed(f"{again.why}, and nothing new was made in its time: {_VAIN}")
        return again

    # Ends.

    def farewell(self, attempt: Attempt) -> None:
        """All is done: processes end by themselves."""
        end = time.monotonic() + FAREWELL
        self.speak(attempt)
        while time.monotonic() < end and any(member.ended() is None for member in self.members.values()):
            self.news()

    def dismiss(self, names: Iterable[str]) -> None:
        members = [self.members.pop(name) for name in list(names)]
        self.crew.dismiss(members)
        for member in members:
            self.settle(member, None)
            self.told.forget(member.name)
            self.watch.forget(member.name)

    def settle(self, member: Member, seen: Seen | None) -> None:
        """What a start is paid for, once."""
        if seen and seen.report:
            member.used = seen.report["memory"] / 1e9
        if not member.is_settled:
            member.is_settled = True
            self.report.stages[self.names[member.name]].paid(time.monotonic() - member.begun, member.memory or member.used)

    def count(self, attempt: Attempt) -> None:
        """What an attempt took, and what it made, belongs in the report."""
        self.results.note(attempt)
        for seen in attempt.seen.values():
            if seen.report:
                self.report.stages[self.names[seen.name]].add(seen.report, seen.finished)
                self.report.took(seen.name, seen.report)
                if member := self.members.get(seen.name):
                    member.used = seen.report["memory"] / 1e9

    def show(self, attempt: Attempt) -> None:
        sources = (seen for seen in attempt.seen.values() if not self.stages[seen.name].before)
        made = sum(seen.report["made"] for seen in sources if seen.report)
        finished = len(attempt.done) + sum(seen.finished for seen in attempt.seen.values())
        self.screen.show(time.monotonic() - self.began, made, finished, len(attempt.done) + len(attempt.seen))
