"""Jobs of workers that stream to each other.

    from nearpath import dataflow as flow

    def numbers(number, of):
        yield from range(number, 1000, of)

    pairs = flow.source(numbers, workers=2) >> flow.map(lambda n: (n % 10, n), workers=2)
    job = flow.run(pairs >> flow.reduce_by_key(int.__add__, workers=3) >> flow.collect())
    print(dict(job.results), job.report)

Items are plain values: None, bool, int, float, str, bytes, and tuples, lists and dicts of them. docs/guide/dataflow.md has it all.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import _code, _native
from ._code import JobDefinition
from ._forked import ForkBackend
from ._graph import Graph, How, Stage, Topology, collect, filter, flat_map, lines, map, reduce_by_key, sink, source, stage
from ._job import Coordinator
from ._native import decode, encode, share
from ._places import Place, Started
from ._processes import Processes
from ._remote import RemoteBackend, Rendezvous
from ._report import Report, StageReport
from ._settings import Job, JobFailed, Settings
from ._workers import Item, Port, Worker

if TYPE_CHECKING:
    from ._functions import Functions

__all__ = [
    "Functions",
    "Graph",
    "How",
    "Item",
    "Job",
    "JobFailed",
    "Place",
    "Port",
    "Processes",
    "Report",
    "Stage",
    "StageReport",
    "Started",
    "Topology",
    "Worker",
    "collect",
    "decode",
    "encode",
    "filter",
    "flat_map",
    "lines",
    "map",
    "reduce_by_key",
    "run",
    "share",
    "sink",
    "source",
    "stage",
]


def __getattr__(name: str) -> Any:
    """Imports on demand, because each worker imports this module and does not need it."""
    if name == "Functions":
        from ._functions import Functions

        return Functions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def run(
    *ends: Stage | Graph | Topology | Callable[..., JobDefinition],
    on: Literal["local"] | Place = "local",
    arguments: Mapping[str, Any] | None = None,
    rendezvous: str | None = None,
    key: str | bytes | None = None,
    trust: str | None = None,
    folder: str | None = None,
    checkpoints: str | None = None,
    every: float = 5.0,
    retries: int | None = None,
    window: int = 4 << 20,
    spill: int = 1 << 30,
    patience: float = 60.0,
    silence: float = 10.0,
    stragglers: bool = True,
    fan_in: int | None = None,
    progress: bool | None = None,
) -> Job:
    """Runs a job to its end. The job is its last stages, a graph, a topology, or a function that returns one of these.

    `arguments` are the function's arguments. With a place for `on`, workers run there. Then the job is a function at the top level
    of a module, because workers import it. They connect to `rendezvous` (`wss://HOST`), which `key` (a file, or its 32 bytes)
    authorizes. `trust` is a PEM file of authorities; default: the system's. A worker counts as dead after `silence` seconds without
    a message while others send. A worker much slower than its stage is restarted once (`stragglers`).

    A checkpoint is made each `every` seconds at `checkpoints`: a folder or `s3://BUCKET/PREFIX` that all workers reach. Local workers
    default to `folder`. After a worker's death the job continues from the last checkpoint, up to `retries` times (default: 3, and
    one per ten workers). A named folder stays after a failure, and the next run continues from it. `window` bounds the unprocessed
    bytes of a stream, `spill` the bytes on disk. Workers must report within `patience` seconds. `progress` shows a line on stderr;
    default: on terminals.
    """
    if _code.is_worker:
        text = "a worker runs the job that it is part of: put the call of `run` behind `if __name__ == \"__main__\":`"
        raise RuntimeError(text)
    settings = Settings(folder, every, retries, window, spill, patience, fan_in, progress, checkpoints, silence, stragglers)
    graph, code = _job_of(ends, arguments or {}, on != "local")
    if on == "local":
        return Coordinator(graph, settings, ForkBackend).run()
    if not isinstance(on, Place):
        raise ValueError(f"workers run on 'local' or at a place, not on {on!r}")
    if code is None or rendezvous is None or key is None:
        raise ValueError("workers elsewhere need a function that makes the job, `rendezvous` and `key`")
    if checkpoints is None and math.isfinite(on.limit):
        text = f"workers at {on.name} run for {on.limit:g} s at most: a job that takes longer needs `checkpoints`"
        warnings.warn(text, stacklevel=2)
    meeting_point = Rendezvous(rendezvous, key if isinstance(key, bytes) else _native.rendezvous_key(key), trust and _read_text(trust))
    return Coordinator(graph, settings, lambda stages: RemoteBackend(code, _code.mark(graph), stages, on, meeting_point, patience, silence)).run()


def _job_of(
    ends: tuple[Stage | Graph | Topology | Callable[..., JobDefinition], ...], arguments: Mapping[str, Any], is_elsewhere: bool
) -> tuple[Graph | Topology, _code.Code | None]:
    stages = [end for end in ends if isinstance(end, Stage)]
    others = [end for end in ends if not isinstance(end, Stage)]
    if len(others) > 1 or bool(stages) == bool(others):
        raise ValueError("a job is some stages, or one graph, or one topology, or one function that gives them")
    job = stages or others[0]
    if callable(job):
        code = _code.Code.of(job, arguments) if is_elsewhere else None
        return _code.graph(job(**arguments)), code
    if is_elsewhere:
        raise ValueError("workers elsewhere make the job themselves: give a function at the top level of a module that returns it")
    return _code.graph(job), None


def _read_text(path: str) -> str:
    with open(path) as file:
        return file.read()
