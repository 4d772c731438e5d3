"""Cost of one worker: seconds, processor time, memory, measured alike for every variant."""

import glob
import json
import os
import resource
import time
from dataclasses import asdict, dataclass

# Billed memory of a function with one whole processor on AWS Lambda, in GB.
FIXED = 1.769


@dataclass
class Spent:
    """Cost of a process from its start until now."""

    name: str
    began: float  # on the machine's monotonic clock, as `ended`
    ended: float
    processor: float  # seconds, of all its threads, in the kernel too
    queued: float  # seconds for which its first thread was runnable but not running
    memory: float  # peak GB; memory shared with siblings counts for each

    @property
    def seconds(self) -> float:
        return self.ended - self.began


_began = time.monotonic()


def _begin() -> None:
    global _began
    _began = time.monotonic()


os.register_at_fork(after_in_child=_begin)


def began() -> float:
    """Returns the time of this process's fork."""
    return _began


def spent(name: str, began: float) -> Spent:
    used = resource.getrusage(resource.RUSAGE_SELF)
    with open("/proc/thread-self/schedstat") as file:
        queued = int(file.read().split()[1]) / 1e9
    return Spent(name, began, time.monotonic(), used.ru_utime + used.ru_stime, queued, used.ru_maxrss * 1024 / 1e9)


def note(folder: str, one: Spent) -> None:
    """Writes the cost for the driver: one file per process. The rename keeps the last complete file if the process is killed."""
    path = os.path.join(folder, f"{one.name}.{os.getpid()}")
    with open(path, "w") as file:
        json.dump(asdict(one), file)
    os.replace(path, f"{path}.spent")


def notes(folder: str) -> list[Spent]:
    found = []
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*.spent"))):
        with open(path) as file:
            found.append(Spent(**json.load(file)))
    return found


def bill(workers: list[Spent]) -> dict[str, float]:
    """Sums the cost of all workers. `waiting_seconds` is the time in which a worker neither ran nor was runnable."""
    return {
        "worker_seconds": sum(one.seconds for one in workers),
        "gb_seconds": sum(one.seconds * one.memory for one in workers),
        "fixed_gb_seconds": sum(one.seconds * FIXED for one in workers),
        "map_cpu_seconds": sum(one.processor for one in workers if one.name.startswith("map")),
        "reduce_cpu_seconds": sum(one.processor for one in workers if one.name.startswith("reduce")),
        "queued_seconds": sum(one.queued for one in workers),
        "waiting_seconds": sum(max(0.0, one.seconds - one.processor - one.queued) for one in workers),
    }
