"""The base class of workers and the usual workers."""

import operator
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias

from . import _native

if TYPE_CHECKING:
    from typing_extensions import Buffer

Item: TypeAlias = Any

# Bound of an item's repr in an exception.
MAX_REPR_CHARS = 500
Port: TypeAlias = Mapping[str, Any]


class Worker:
    """One worker of a stage. All methods have defaults.

    Items come from `input`, or from streams through `deserialise`. `process` turns them into others, and `finish` yields the rest
    after all inputs have ended. The items go to `output`, or to streams through `serialise`.

    A worker with state between calls of `process` returns it as a plain value from `snapshot`, and gets it back in `restore`. Then
    a job is exact despite deaths. After a restart `input` and `finish` run again, and their earlier items are skipped. They must
    yield the same items again (see also `resume`).
    """

    name = ""  # the worker's name
    number = 0  # its number in the stage
    of = 1  # the number of workers in the stage
    folder = ""  # the job's folder for result files
    codec = "values"  # "raw": process takes and yields batches, as buffers
    # The batch that is being processed, and the position in it, of workers that call a function for each item.
    _batch: list[Item] | None = None
    _position: Iterator[Item] | None = None

    def start(self) -> None:
        """Prepares the worker, before `restore` and all items."""

    def input(self, port: Port) -> Iterator[Item]:
        """Yields the items of an input that is not a stream."""
        raise NotImplementedError(f"{type(self).__name__} has an input of type {port['type']!r}: define a method `input`")

    def resume(self, made: int) -> int:
        """Resumes after `made` items, and returns the number of them that `input` omits. Called before `input`."""
        return 0

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        """Turns items into others. A generator."""
        return items

    def finish(self) -> Iterable[Item]:
        """Yields the remaining items after all inputs have ended. A generator."""
        return ()

    def output(self, items: Iterable[Item], port: Port) -> None:
        """Takes the items of an output that is not a stream."""
        for _ in items:
            pass

    def serialise(self, items: Iterable[Item]) -> "Iterator[Buffer]":
        """Yields one buffer per batch. A generator."""
        yield _native.encode(items)

    def deserialise(self, batch: memoryview) -> Iterable[Item]:
        """Returns the items of a batch."""
        return _native.decode(batch)

    def divide(self, items: list[Item], consumers: int) -> list[list[Item]]:
        """Divides items among the consumers of a stage that reads by key."""
        parts: list[list[Item]] = [[] for _ in range(consumers)]
        for item in items:
            parts[_native.key_partition(item[0], consumers)].append(item)
        return parts

    def grow(self, count: int = 1, stage: str | None = None) -> int:
        """Requests workers of a stage that reads this one and has `max_workers`, and returns the granted number.

        `stage` is required if several stages qualify. The new workers read this worker only. Call it in `input`, `process` or
        `finish`.
        """
        return self._request_workers(count, stage)

    def flush(self) -> None:
        """Sends all items yielded so far, without waiting for a full batch or the linger. Call it in `input`, `process` or `finish`."""
        self._flush_items()

    def snapshot(self) -> Any:
        """Returns the state of `process` as a plain value."""
        return None

    def restore(self, kept: Any) -> None:
        """Restores a snapshot; None at the beginning. Called once, before all items."""

    def result(self) -> tuple[str, str] | None:
        """Returns a file in `folder` and its destination after the job. Only for workers that run "here"."""
        return None

    def describe_item(self, error: BaseException) -> None:
        """Adds to an exception the item that the worker's code got last, if it is known."""
        if self._batch is None or self._position is None:
            return
        at = len(self._batch) - operator.length_hint(self._position) - 1
        if at >= 0:
            error.add_note(f"while processing the item {_shorten(self._batch[at])}")

    def position(self) -> int:
        """Returns how many items of the batch are left, if it is known."""
        return 0 if self._position is None else operator.length_hint(self._position)

    def forget_batch(self) -> None:
        """Ends the batch: later exceptions are not an item's."""
        self._batch = None

    def _track(self, items: Iterable[Item]) -> Iterable[Item]:
        """Returns an iterator over a batch that knows its position; it costs nothing per item."""
        self._batch = items if isinstance(items, list) else None
        if self._batch is None:
            return items
        self._position = iter(self._batch)
        return self._position

    def _flush_items(self) -> None:
        raise RuntimeError("flush was called outside a job: call it in input, process or finish")

    def _request_workers(self, count: int, stage: str | None) -> int:
        raise RuntimeError("grow was called outside a job: call it in input, process or finish")


def _shorten(item: Item) -> str:
    """Returns an item's repr, as far as it fits into a message."""
    try:
        text = repr(item)
    except Exception as error:  # the repr of the user's class
        text = f"of type {type(item).__name__}, whose repr raises {type(error).__name__}"
    return text if len(text) <= MAX_REPR_CHARS else f"{text[:MAX_REPR_CHARS]}… ({len(text)} characters)"


class Source(Worker):
    """Yields items of a function of the worker's number and count, and of the made items if it resumes."""

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
        return map(self._change, self._track(items))


class FlatMap(Worker):
    def __init__(self, change: Callable[[Item], Iterable[Item]]) -> None:
        self._change = change

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        for item in self._track(items):
            yield from self._change(item)


class Filter(Worker):
    def __init__(self, keep: Callable[[Item], bool]) -> None:
        self._keep = keep

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        return filter(self._keep, self._track(items))


class ReduceByKey(Worker):
    """Keeps one value for each key."""

    def __init__(self, join: Callable[[Any, Any], Any]) -> None:
        self._join = join
        self._values: dict[Any, Any] = {}

    def process(self, items: Iterable[Item]) -> Iterable[Item]:
        values, join = self._values, self._join
        for key, value in self._track(items):
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
    """Writes one line per item, in a file per worker."""

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
        for item in self._track(items):
            self._call(item)
