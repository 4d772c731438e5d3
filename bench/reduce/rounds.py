"""Jobs in sequence, in alternating order, each in its own process and checked; results are medians."""

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

import check
from killer import Killer

# Processor seconds, which the slowdown does not change.
PROCESSOR = ("map_cpu_seconds", "reduce_cpu_seconds")
HERE = os.path.dirname(os.path.abspath(__file__))


@dataclass
class Case:
    """One job size, with the same conditions for every variant."""

    name: str
    folder: str  # folder of its files
    files: int
    workers: int
    reducers: int
    slow: float = 1.0
    enter: list[str] = field(default_factory=list)  # command prefix
    words: list[str] = field(default_factory=list)  # further arguments for `once.py`


@dataclass
class Row:
    """One variant in one case: medians over the rounds."""

    case: str
    variant: str
    rounds: int
    seconds: float
    spread: float  # of the seconds: longest minus shortest, by the median
    failed: int  # rounds that did not end, or whose sums were wrong
    worker_seconds: float = math.nan
    gb_seconds: float = math.nan
    fixed_gb_seconds: float = math.nan
    map_cpu_seconds: float = math.nan
    reduce_cpu_seconds: float = math.nan
    queued_seconds: float = math.nan
    waiting_seconds: float = math.nan


@dataclass
class Death:
    """A job with killed workers."""

    case: str
    seed: int
    killed: int
    seconds: float
    is_exact: bool


def compare(case: Case, ways: list[str], rounds: int, out: str) -> list[Row]:
    """Runs every variant in every round, in alternating order."""
    took: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in ways if number % 2 == 0 else reversed(ways):
            took[way].append(once(case, way, out))
            print(f"{case.name}, {way}: {took[way][-1]['seconds']:.2f} s", file=sys.stderr, flush=True)
    return [row(case, way, rounds, [one for one in took[way] if not one["failed"]]) for way in ways]


def row(case: Case, way: str, rounds: int, took: list[dict[str, float]]) -> Row:
    if not took:
        return Row(case.name, way, rounds, math.nan, math.nan, rounds)
    middle = {name: statistics.median([one[name] for one in took]) for name in took[0]}
    seconds, spread = middle["seconds"], max(one["seconds"] for one in took) - min(one["seconds"] for one in took)
    names = ("worker_seconds", "gb_seconds", "fixed_gb_seconds", "map_cpu_seconds", "reduce_cpu_seconds", "queued_seconds", "waiting_seconds")
    values = {name: middle[name] for name in names}
    return Row(case.name, way, rounds, seconds, spread / seconds, rounds - len(took), **values)


def once(case: Case, way: str, out: str, killer: "tuple[int, float, int] | None" = None) -> dict[str, float]:
    """Runs one job. Times are converted to those without slowdown."""
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    words = [*case.enter, sys.executable, os.path.join(HERE, "once.py"), way, "--folder", case.folder, "--out", out]
    words += ["--files", str(case.files), "--workers", str(case.workers), "--reducers", str(case.reducers), "--slow", str(case.slow), *case.words]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as job:
        death = Killer(job.pid, *killer) if killer else None
        if death:
            death.start()
        output, _ = job.communicate()
        killed = death.end() if death else 0
    lines = output.splitlines()
    took: dict[str, float] = json.loads(lines[-1]) if job.returncode == 0 else {"seconds": float("nan")}
    is_exact = job.returncode == 0 and check.is_exact(case.folder, out)
    shutil.rmtree(out)
    own = {name: value if name in PROCESSOR else value / case.slow for name, value in took.items()}
    return own | {"failed": 0 if is_exact else 1, "killed": killed}


def kill(case: Case, seed: int, seconds: float, many: int, out: str) -> Death:
    took = once(case, "nearpath", out, (seed, seconds * case.slow, many))
    return Death(case.name, seed, int(took["killed"]), took["seconds"], not took["failed"])
