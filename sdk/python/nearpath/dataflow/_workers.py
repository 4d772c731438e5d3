"""The base class of workers and the usual workers."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from . import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer

Item: TypeAlias = Any
Port: TypeAlias = Mapping[str, Any]


class Worker:
    """One worker of a stage. All methods have a meaning without being written.

    Items come from `input` (where the worker makes them itself) or from streams, through `deserialise`; `process` makes others of
    them, and `finish` what is left when all have come. They go to `output`, or to streams, through `serialise`.

    A worker that keeps something between two calls of `process` gives it as a plain value in `snapshot` and takes it back in
    `restore`: with these a job that lost a worker goes on exactly. `input` and `finish` are run anew then, and what they have yielded
    before is skipped, so they must yield the same again (but see `resume`).
    """

    name = ""  # of this worker
    number = 0  # in its stage
    of = 1  # so many workers
    folder = ""  # for what it makes; the job's
    codec = "values"  # "raw": process takes and yields batches, as buffers

    def start(self) -> None:
        """Before anything comes, and before `restore`."""

    def input(self, port: Port) -> Iterator[Item]:
        """Items of an input that is not a stream."""
        raise NotImplementedError(f"{type(self).__name__} has an input of type {port['type']!r}: give it a method `input`")

    def resume(self, made: int) -> int:
        """It goes on from a checkpoint before which it had made so many items: how many of them it will not make once more. Called
        before `input`, where it has one."""
        return 0

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        """Turns items into others. A generator."""
        return items

    def finish(self) -> Iterable[Item]:
        """Yields the remaining items after all inputs have ended. A generator."""
        return ()

    def output(self, items: Iterable[Item], port: Port) -> None:
        """Items for an output that is not a stream."""
        for _ in items:
            pass

    def serialise(self, items: Iterable[Item]) -> "Iterator[Buffer]":
        """Yields one buffer per batch. A generator."""
        yield _native.encode(items)

    def deserialise(self, batch: memoryview) -> Iterable[Item]:
        """The items of a batch."""
        return _native.decode(batch)

    def divide(self, items: list[Item], consumers: int) -> list[list[Item]]:
        """Divides items among the consumers of a stage that reads by key."""
        parts: list[list[Item]] = [[] for _ in range(consumers)]
        for item in items:
            parts[_native.share(item[0], consumers)].append(item)
        return parts

    def grow(self, count: int = 1, stage: str | None = None) -> int:
        """Has up to so many more workers started of a stage that reads this one and has `most` (which, where there are several): how
        many there will be. They read this worker alone, as soon as they are there. From `input`, `process` or `finish`."""
        return self._request_workers(count, stage)

    def snapshot(self) -> Any:
        """Returns the state of `process` as a plain value."""
        return None

    def restore(self, kept: Any) -> None:
        """Goes on from there; from the beginning, where it is None. Always called, once, before anything comes."""

    def result(self) -> tuple[str, str] | None:
        """A file that it made in `folder`, and where it belongs once the whole job is through. Only of workers that run "here"."""
        return None

    def _request_workers(self, count: int, stage: str | None) -> int:
        raise RuntimeError("grow was called outside a job: call it in input, process or finish")


class Source(Worker):
    """Items from a function of number and count of workers, and of how many it has made, if it resumes."""

    def __init__(self, make: Callable[..., Iterable[Item]], resumes: bool = False) -> None:
        self._make, self._resumes, self._made = make, resumes, 0

    def resume(self, made: int) -> int:
        self._made = made if self._resumes else 0
        return self._made

    def input(self, port: Port) -> Iterator[Item]:
        yield from self._make(self.number, self.of, self._made) if self._resumes else self._make(self.number, self.of)


class Map(Worker):
    def __init__(self, change: Callable[[Item], Item]) -> None:
        self._change = change

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        return map(self._change, items)


class FlatMap(Worker):
    def __init__(self, change: Callable[[Item], Iterable[Item]]) -> None:
        self._change = change

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        for item in items:
            yield from self._change(item)


class Filter(Worker):
    def __init__(self, keep: Callable[[Item], bool]) -> None:
        self._keep = keep

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        return filter(self._keep, items)


class ReduceByKey(Worker):
    """Keeps one value for each key."""

    def __init__(self, join: Callable[[Any, Any], Any]) -> None:
        self._join = join
        self._values: dict[Any, Any] = {}

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        values, join = self._values, self._join
        for key, value in items:
            values[key] = join(values[key], value) if key in values else value
        return ()

    def finish(self) -> Iterable[Item]:
        return iter(self._values.items())

    def snapshot(self) -> Any:
        return self._values

    def restore(self, kept: Any) -> None:
        self._values = kept or {}


class _File(Worker):
    """Writes a file that a restart truncates to the last checkpoint."""

    _out: BinaryIO

    def _path(self) -> str:
        return os.path.join(self.folder, f"{self.name}.part")

    def start(self) -> None:
        self._out = open(self._path(), "r+b" if os.path.exists(self._path()) else "w+b")

    def restore(self, kept: Any) -> None:
        self._out.truncate(kept or 0)
        self._out.seek(0, os.SEEK_END)

    def snapshot(self) -> Any:
        self._out.flush()
        os.fsync(self._out.fileno())
        return self._out.tell()

    def result(self) -> tuple[str, str] | None:
        self.snapshot()
        return self._path(), self._final()

    def _final(self) -> str:
        return os.path.join(self.folder, f"{self.name}.items")


class Collect(_File):
    """Keeps all items for `Job.results`."""

    def output(self, items: Iterable[Item], port: Port) -> None:
        self._out.write(_native.encode(items))


class Lines(_File):
    """A line for each item, in a file of each worker's own."""

    def __init__(self, path: str) -> None:
        self._pattern = path

    def output(self, items: Iterable[Item], port: Port) -> None:
        self._out.writelines(f"{item}\n".encode() for item in items)

    def _final(self) -> str:
        return os.path.abspath(self._pattern.format(number=self.number))


class Each(Worker):
    """Calls a function with each item; after a death, with some of them twice."""

    def __init__(self, call: Callable[[Item], object]) -> None:
        self._call = call

    def output(self, items: Iterable[Item], port: Port) -> None:
        for item in items:
            self._call(item)
