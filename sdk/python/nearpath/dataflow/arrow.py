"""Columns instead of items: workers that take and yield record batches of Arrow.

The first column is the key. Batches cross as Arrow's IPC streams and are read where they lie. Needs `pip install nearpath[arrow]`.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped, import-not-found, unused-ignore]
import pyarrow.acero  # type: ignore[import-untyped, import-not-found, unused-ignore] # by group_by: once, not in each worker that is forked
import pyarrow.compute  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _native
from ._graph import Stage, _with_stage_name
from ._workers import Item, Port, Worker

Batch: TypeAlias = Any  # pyarrow.RecordBatch
Function: TypeAlias = Literal["sum", "min", "max"]


class ArrowWorker(Worker):
    """`process` takes record batches and yields some."""

    def serialise(self, items: Iterable[Item]) -> Iterator[bytes]:
        for batch in items:
            yield _written([batch], batch.schema)

    def deserialise(self, batch: memoryview) -> Iterable[Item]:
        with pa.ipc.open_stream(pa.py_buffer(batch)) as reader:
            yield from reader

    def divide(self, items: list[Item], consumers: int) -> list[list[Item]]:
        parts: list[list[Item]] = [[] for _ in range(consumers)]
        for batch in items:
            for part, rows in zip(parts, _rows(batch, consumers)):
                if len(rows):
                    part.append(batch.take(rows))
        return parts


class _Source(ArrowWorker):
    def __init__(self, make: Callable[[int, int], Iterable[Batch]]) -> None:
        self._make = make

    def input(self, port: Port) -> Iterator[Batch]:
        yield from self._make(self.number, self.of)


class _Map(ArrowWorker):
    def __init__(self, change: Callable[[Batch], Batch]) -> None:
        self._change = change

    def process(self, items: Iterable[Batch]) -> Iterable[Batch]:
        return (self._change(batch) for batch in items)


class _Reduce(ArrowWorker):
    """Keeps batches until there are many rows; then one row for each key."""

    MANY = 1 << 21

    def __init__(self, function: Function) -> None:
        self._function = function
        self._kept: list[Batch] = []
        self._rows = 0

    def process(self, items: Iterable[Batch]) -> Iterable[Batch]:
        for batch in items:
            self._kept.append(batch)
            self._rows += batch.num_rows
            if self._rows >= max(self.MANY, 2 * self._kept[0].num_rows):
                self._join()
        return ()

    def _join(self) -> None:
        if not self._kept:
            return
        table = pa.Table.from_batches(self._kept)
        key, *values = table.column_names
        joined = table.group_by(key, use_threads=False).aggregate([(value, self._function) for value in values])
        joined = joined.select([key, *(f"{value}_{self._function}" for value in values)]).rename_columns([key, *values])
        self._kept = joined.combine_chunks().to_batches()
        self._rows = joined.num_rows

    def finish(self) -> Iterable[Batch]:
        self._join()
        for batch in self._kept:
            for at in range(0, batch.num_rows, 1 << 16):
                yield batch.slice(at, 1 << 16)

    def snapshot(self) -> Any:
        self._join()
        return _written(self._kept, self._kept[0].schema) if self._kept else None

    def restore(self, kept: Any) -> None:
        self._kept = list(self.deserialise(memoryview(kept))) if kept else []
        self._rows = sum(batch.num_rows for batch in self._kept)


class _Rows(ArrowWorker):
    """Record batches as tuples, for stages of items."""

    def serialise(self, items: Iterable[Item]) -> Iterator[bytes]:
        yield _native.encode(items)

    def divide(self, items: list[Item], consumers: int) -> list[list[Item]]:
        return Worker.divide(self, items, consumers)

    def process(self, items: Iterable[Batch]) -> Iterable[Item]:
        for batch in items:
            yield from zip(*(column.to_pylist() for column in batch.columns))


def _written(batches: list[Batch], schema: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    written: bytes = out.getvalue().to_pybytes()
    return written


def _rows(batch: Batch, consumers: int) -> list[Any]:
    """Which rows each consumer gets."""
    shares = _shares(batch.column(0), consumers)
    return [pa.compute.indices_nonzero(pa.compute.equal(shares, consumer)) for consumer in range(consumers)]


def _shares(keys: Any, consumers: int) -> Any:
    """Returns the consumer of each key. Strings are hashed in place; other keys once per distinct value."""
    if pa.types.is_string(keys.type) and len(keys) and not keys.null_count:
        _, ends, text = (memoryview(part or b"").cast("B") for part in keys.buffers())
        return _numbers(_native.text_shares(ends[4 * keys.offset :][: 4 * len(keys) + 4], text, consumers))
    different = keys.dictionary_encode(null_encoding="encode")
    return _numbers(_native.shares(different.dictionary.to_pylist(), consumers)).take(different.indices)


def _numbers(written: bytes) -> Any:
    return pa.Array.from_buffers(pa.uint32(), len(written) // 4, [None, pa.py_buffer(written)])


def source(
    make: Callable[[int, int], Iterable[Batch]], workers: int = 1, name: str | None = None, total: int | None = None
) -> Stage:
    """Record batches of `make(number, of)`; `total` counts batches."""
    return Stage(_with_stage_name("source", lambda: _Source(make)), workers, name, total=total)


def map(change: Callable[[Batch], Batch], workers: int = 1, name: str | None = None) -> Stage:
    return Stage(_with_stage_name("map", lambda: _Map(change)), workers, name)


def reduce_by_key(function: Function, workers: int = 1, name: str | None = None) -> Stage:
    """Reduces each distinct value of the first column to one row: sum, minimum or maximum of each other column."""
    return Stage(_with_stage_name("reduce-by-key", lambda: _Reduce(function)), workers, name, reads="by-key")


def rows(workers: int = 1, name: str | None = None) -> Stage:
    """From record batches to tuples, for the stages of `nearpath.dataflow`."""
    return Stage(_with_stage_name("rows", _Rows), workers, name)
