"""Builds graphs of stages, joined by `>>`."""

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Self, TypeAlias

from . import _native
from ._item_writer import DEFAULT_LINGER
from ._workers import Collect, Each, Filter, FlatMap, Item, Lines, Map, ReduceByKey, Source, Worker

How: TypeAlias = Literal["one-to-one", "by-key", "broadcast", "gather", "spread"]
Where: TypeAlias = Literal["here", "there"]


class Stage:
    """Code that several workers run. `a >> b` makes b read a, and returns b."""

    def __init__(
        self,
        worker: Callable[[], Worker],
        workers: int = 1,
        name: str | None = None,
        reads: How | None = None,
        total: int | None = None,
        max_workers: int | None = None,
    ) -> None:
        self.worker, self.workers, self.name, self._reads, self.total = worker, workers, name, reads, total
        self.max_workers = max_workers
        self.before: list[tuple[Stage, How, bool, float | None]] = []
        self.where: Where = "there"
        self._is_kept = False  # the output is in files of the leader's machine

    def __rshift__(self, other: "Stage") -> "Stage":
        return other.after(self)

    def after(self, other: "Stage", how: How | None = None, spill: bool = False, linger: float | None = DEFAULT_LINGER) -> Self:
        """Reads another stage, with the distribution `how`. With `spill` excess data goes to disk.

        An item waits up to `linger` seconds for others, so that a batch is worth sending; None: until the batch is full.
        """
        self.before.append((other, how or self._reads or self._default_distribution(other), spill, linger))
        return self

    def on(self, where: Where) -> Self:
        """Runs the workers "here", on the leader's machine, or "there", at the place of `run`.

        Stages with files or results run here by default, all others there. Raises ValueError for `collect` and `lines`.
        """
        if self._is_kept and where == "there":
            text = f'{self.name or getattr(self.worker, "stage_name", "stage")} keeps its results where the job is run: remove `.on("there")`'
            raise ValueError(text)
        self.where = where
        return self

    def _keep_here(self) -> Self:
        self._is_kept, self.where = True, "here"
        return self

    def _default_distribution(self, other: "Stage") -> How:
        if self.workers == 1 and self.max_workers is None:
            return "gather"
        scales_out = self.max_workers is not None or other.max_workers is not None
        return "one-to-one" if self.workers == other.workers and not scales_out else "spread"


class Graph:
    """A graph of the given stages and all stages before them."""

    def __init__(self, *ends: Stage) -> None:
        self.stages: dict[str, Stage] = {}
        self._names: dict[int, str] = {}
        for stage in _upstream(ends):
            name = stage.name or self._unused_name(getattr(stage.worker, "stage_name", None) or "stage")
            self._names[id(stage)] = name
            self.stages.setdefault(name, stage)
        self._order = _upstream(ends)

    def _unused_name(self, kind: str) -> str:
        names = (kind if at == 1 else f"{kind}-{at}" for at in range(1, 1 << 30))
        return next(name for name in names if name not in self._names.values())

    def json(self) -> str:
        """Returns the graph as JSON."""
        stages = [
            {"name": self._names[id(stage)], "workers": stage.workers} | ({"max_workers": stage.max_workers} if stage.max_workers else {})
            for stage in self._order
        ]
        edges = [
            {"from": self._names[id(before)], "to": self._names[id(stage)], "distribution": how, "spill": spill}
            | ({} if linger == DEFAULT_LINGER else {"linger": linger})
            for stage in self._order
            for before, how, spill, linger in stage.before
        ]
        return json.dumps({"stages": stages, "edges": edges})

    def topology(self, fan_in: int | None = None) -> dict[str, Any]:
        """Returns the workers. Raises ValueError with all faults of the graph."""
        workers: dict[str, Any] = json.loads(_native.expand_graph(self.json(), fan_in))
        return workers

    def _repr_svg_(self) -> str:
        """Renders the graph in a notebook."""
        return self.picture()

    def picture(self, format: Literal["dot", "svg"] = "svg") -> str:
        """Renders the graph."""
        return _native.render_graph(self.json(), format)


class Topology:
    """A topology in JSON, with the code of each stage by name."""

    def __init__(self, text: str, code: Mapping[str, Callable[[], Worker]]) -> None:
        self._topology: dict[str, Any] = json.loads(_native.check_topology(text))
        names = [worker.get("stage") or worker["name"] for worker in self._topology["workers"]]
        if missing := sorted(set(names) - set(code)):
            raise ValueError(f"no code for {str(missing).strip('[]')}: pass it, or set `stage` in the topology")
        first = [worker.get("stage") or worker["name"] for worker in self._topology["workers"] if not worker.get("spare")]
        self.stages = {name: Stage(code[name], first.count(name), name) for name in dict.fromkeys(names)}

    def json(self) -> str:
        return json.dumps(self._topology)

    def topology(self, fan_in: int | None = None) -> dict[str, Any]:
        return self._topology


def _upstream(ends: Iterable[Stage]) -> list[Stage]:
    """Returns each stage once, after the stages that it reads. Permits cycles, which the check reports."""
    order: list[Stage] = []
    seen: set[int] = set()
    waiting: list[tuple[Stage, bool]] = [(end, False) for end in reversed(list(ends))]
    while waiting:
        stage, is_done = waiting.pop()
        if is_done:
            order.append(stage)
        elif id(stage) not in seen:
            seen.add(id(stage))
            waiting.append((stage, True))
            waiting.extend((before, False) for before, _, _, _ in reversed(stage.before))
    return order


def _with_stage_name(kind: str, make: Callable[[], Worker]) -> Callable[[], Worker]:
    setattr(make, "stage_name", kind)
    return make


def source(
    make: Callable[..., Iterable[Item]],
    workers: int = 1,
    name: str | None = None,
    total: int | None = None,
    resumes: bool = False,
) -> Stage:
    """Yields the items of `make(number, of)`, which must be the same in each call. `total` counts them, for the progress line.

    With `resumes`, `make(number, of, done)` skips the first `done` items, which were made before a checkpoint.
    """
    return Stage(_with_stage_name("source", functools.partial(Source, make, resumes)), workers, name, total=total)


def map(change: Callable[[Item], Item], workers: int = 1, name: str | None = None, max_workers: int | None = None) -> Stage:
    return Stage(_with_stage_name("map", functools.partial(Map, change)), workers, name, max_workers=max_workers)


def flat_map(
    change: Callable[[Item], Iterable[Item]], workers: int = 1, name: str | None = None, max_workers: int | None = None
) -> Stage:
    return Stage(_with_stage_name("flat-map", functools.partial(FlatMap, change)), workers, name, max_workers=max_workers)


def filter(keep: Callable[[Item], bool], workers: int = 1, name: str | None = None, max_workers: int | None = None) -> Stage:
    return Stage(_with_stage_name("filter", functools.partial(Filter, keep)), workers, name, max_workers=max_workers)


def reduce_by_key(join: Callable[[Any, Any], Any], workers: int = 1, name: str | None = None) -> Stage:
    """Reduces all values of a key to one (key, value)."""
    return Stage(_with_stage_name("reduce-by-key", functools.partial(ReduceByKey, join)), workers, name, reads="by-key")


def stage(
    worker: Callable[[], Worker],
    workers: int = 1,
    name: str | None = None,
    reads: How | None = None,
    max_workers: int | None = None,
) -> Stage:
    """Runs workers of a custom class. A worker that they read may add workers up to `max_workers` with `grow`."""
    return Stage(worker, workers, name or getattr(worker, "__name__", "stage").strip("<>").lower(), reads, max_workers=max_workers)


def collect(workers: int = 1, name: str | None = None) -> Stage:
    """Keeps all items for `Job.results`."""
    return Stage(_with_stage_name("collect", Collect), workers, name)._keep_here()


def lines(path: str, workers: int = 1, name: str | None = None) -> Stage:
    """Writes one line per item. With several workers `{number}` in the path is the worker's number."""
    if workers > 1 and "{number}" not in path:
        raise ValueError(f"{workers} workers cannot write the same file: put {{number}} in {path!r}")
    return Stage(_with_stage_name("lines", functools.partial(Lines, path)), workers, name)._keep_here()


def sink(call: Callable[[Item], object], workers: int = 1, name: str | None = None) -> Stage:
    """Calls a function with each item, after a death with some items twice. `lines` and `collect` are exact."""
    return Stage(_with_stage_name("sink", functools.partial(Each, call)), workers, name).on("here")
