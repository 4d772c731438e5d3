"""Jobs of workers that stream to each other.

    from nearpath import dataflow as flow

    def numbers(number, of):
        yield from range(number, 1000, of)

    pairs = flow.source(numbers, workers=2) >> flow.map(lambda n: (n % 10, n), workers=2)
    job = flow.run(pairs >> flow.reduce_by_key(int.__add__, workers=3) >> flow.collect())
    print(dict(job.results), job.report)

Items are plain values: None, bool, int, float, str, bytes, and tuples, lists and dicts of them. See docs/guide/dataflow.md.
"""

import math
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from . import _code, _native
from ._code import JobDefinition
from ._graph import Graph, How, Stage, Topology, collect, filter, flat_map, lines, map, reduce_by_key, sink, source, stage
from ._job import Coordinator
from ._local import LocalBackend
from ._native import decode, encode, key_partition
from ._places import Place, Started
from ._processes import Processes
from ._remote import RemoteBackend, Rendezvous
from ._report import Report, StageReport
from ._settings import Job, JobFailed, Settings
from ._start_methods import StartMethod, prepare
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
    "key_partition",
    "lines",
    "map",
    "reduce_by_key",
    "run",
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
    start_method: StartMethod = "fork",
    arguments: Mapping[str, Any] | None = None,
    rendezvous: str | None = None,
    key: str | bytes | None = None,
    trust: str | None = None,
    folder: str | None = None,
    checkpoints: str | None = None,
    checkpoint_interval: float = 5.0,
    retries: int | None = None,
    window: int = 4 << 20,
    spill: int = 1 << 30,
    contact_timeout: float = 60.0,
    silence_timeout: float = 10.0,
    stall_report_timeout: float = 30.0,
    stall_timeout: float = math.inf,
    stragglers: bool = True,
    fan_in: int | None = None,
    progress: bool | None = None,
) -> Job:
    """Runs a job to its end. The job is its last stages, a graph, a topology, or a function that returns one of these.

    `arguments` are the function's arguments. With a place for `on`, workers run there. Then the job is a function at the top level
    of a module, because workers import it. They connect to `rendezvous` (`wss://HOST`), which `key` (a file, or its 32 bytes)
    authorizes. `trust` is a PEM file of authorities; default: the system's. Local workers are forked. With `start_method`
    "forkserver" or "spawn" they import their code instead, so all functions and classes of the job must be picklable.

    A worker counts as dead after `silence_timeout` seconds without a message while others send. A worker that makes no progress for
    `stall_report_timeout` seconds is reported with its Python stacks; after `stall_timeout` seconds it counts as dead (default: never).
    A worker much slower than its stage is restarted once (`stragglers`).

    A checkpoint is made each `checkpoint_interval` seconds at `checkpoints`: a folder or `s3://BUCKET/PREFIX` that all workers
    reach. Local workers default to `folder`. After a worker's death the job continues from the last checkpoint, up to `retries` times (default: 3, and
    one per ten workers). A named folder stays after a failure, and the next run continues from it. `window` bounds the unprocessed
    bytes of a stream, `spill` the bytes on disk. Workers must report within `contact_timeout` seconds. `progress` shows a line on stderr;
    default: on terminals.
    """
    if _code.is_worker:
        text = "a worker runs its own job on import: put the call of `run` behind `if __name__ == \"__main__\":`"
        raise RuntimeError(text)
    settings = Settings(
        folder, checkpoint_interval, retries, window, spill, contact_timeout, fan_in, progress, checkpoints, silence_timeout, stragglers, stall_report_timeout, stall_timeout
    )  # fmt: skip
    graph, code = _job_of(ends, arguments or {}, on != "local")
    if on == "local":
        prepare(start_method, graph.stages)
        return Coordinator(graph, settings, lambda stages: LocalBackend(stages, start_method, silence_timeout)).run()
    if start_method != "fork":
        raise ValueError(f"invalid start method {start_method!r}: workers at a place are started by it")
    if not isinstance(on, Place):
        raise ValueError(f"invalid place {on!r}: expected 'local' or a flow.Place")
    if code is None or rendezvous is None or key is None:
        raise ValueError("remote workers need a function that makes the job, `rendezvous` and `key`")
    if checkpoints is None and math.isfinite(on.limit):
        text = f"workers at {on.name} run for {on.limit:g} s at most: a longer job needs `checkpoints`"
        warnings.warn(text, stacklevel=2)
    server = Rendezvous(rendezvous, key if isinstance(key, bytes) else _native.read_rendezvous_key(key), trust and _read_text(trust))
    mark = _code.mark(graph)
    make_backend = lambda stages: RemoteBackend(code, mark, stages, on, server, contact_timeout, silence_timeout)
    return Coordinator(graph, settings, make_backend).run()


def _job_of(
    ends: tuple[Stage | Graph | Topology | Callable[..., JobDefinition], ...], arguments: Mapping[str, Any], is_remote: bool
) -> tuple[Graph | Topology, _code.Code | None]:
    stages = [end for end in ends if isinstance(end, Stage)]
    others = [end for end in ends if not isinstance(end, Stage)]
    if len(others) > 1 or bool(stages) == bool(others):
        raise ValueError("invalid job: expected stages, one graph, one topology, or one function that returns one of these")
    job = stages or others[0]
    if callable(job):
        code = _code.Code.of(job, arguments) if is_remote else None
        return _code.graph(job(**arguments)), code
    if is_remote:
        raise ValueError("remote workers make the job themselves: pass a function at the top level of a module that returns it")
    return _code.graph(job), None


def _read_text(path: str) -> str:
    with open(path) as file:
        return file.read()
