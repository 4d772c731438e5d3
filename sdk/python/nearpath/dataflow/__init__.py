"""Jobs of workers that stream to each other.

    from nearpath import dataflow as flow

    def numbers(number, of):
        yield from range(number, 1000, of)

    pairs = flow.source(numbers, workers=2) >> flow.map(lambda n: (n % 10, n), workers=2)
    job = flow.run(pairs >> flow.reduce_by_key(int.__add__, workers=3) >> flow.collect())
    print(dict(job.results), job.report)

Items are plain values: None, bool, int, float, str, bytes, and tuples, lists and dicts of them. docs/guide/dataflow.md has it all.
"""

from typing import Literal

from ._forked import Forks
from ._graph import Graph, How, Stage, Topology, collect, filter, flat_map, lines, map, reduce_by_key, sink, source, stage
from ._job import Coordinator, Job, JobFailed, Settings
from ._native import decode, encode, share
from ._places import Place, Started
from ._report import Report, StageReport
from ._workers import Item, Port, Worker

__all__ = [
    "Graph",
    "How",
    "Item",
    "Job",
    "JobFailed",
    "Place",
    "Port",
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


def run(
    *ends: Stage | Graph | Topology,
    on: Literal["local"] = "local",
    folder: str | None = None,
    every: float = 5.0,
    retries: int | None = None,
    window: int = 4 << 20,
    spill: int = 1 << 30,
    patience: float = 60.0,
    fan_in: int | None = None,
    progress: bool | None = None,
) -> Job:
    """Runs a job to its end: the stages that lead to `ends`, or a graph or topology.

    `every` so many seconds a checkpoint is made, in `folder`; a worker that dies is replaced, and the job goes on from there, `retries`
    times (where nothing is said: 3, and one more for every ten workers). A folder that is named stays when the job fails, and the next run goes on from it. `window` bytes are on their way on
    each stream at most; `spill` bytes of disk are for each one that spills. `progress` shows a line on stderr; where nothing is
    said, on terminals.
    """
    if on != "local":
        raise ValueError(f"workers run on 'local', not on {on!r}")
    stages = [end for end in ends if isinstance(end, Stage)]
    others = [end for end in ends if not isinstance(end, Stage)]
    if len(others) > 1 or bool(stages) == bool(others):
        raise ValueError("a job is some stages, or one graph, or one topology")
    settings = Settings(folder, every, retries, window, spill, patience, fan_in, progress)
    return Coordinator(others[0] if others else Graph(*stages), settings, Forks).run()
