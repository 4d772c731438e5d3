"""Workers for columns: they process record batches of Arrow.

The first column is the key. Batches travel as Arrow IPC streams and are read in place. Needs pyarrow, the extra `arrow`.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped, import-not-found, unused-ignore]
import pyarrow.acero  # type: ignore[import-untyped, import-not-found, unused-ignore] # for group_by, imported once before the forks
import pyarrow.compute  # type: ignore[import-untyped, import-not-found, unused-ignore]

from . import _native
from ._graph import Stage, _with_stage_name
from ._workers import Item, Port, Worker

Batch: TypeAlias = Any  # pyarrow.RecordBatch
Function: TypeAlias = Literal["sum", "min", "max"]


class ArrowWorker(Worker):
    """The base class of workers whose `process` takes and yields record batches."""

    def serialise(self, items: Iterable[Item]) -> Iterator[bytes]:
        for batch in items:
            yield _serialise([batch], batch.schema)

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
    """Collects batches, and reduces them to one row per key at MAX_ROWS rows."""

    MAX_ROWS = 1 << 21

    def __init__(self, function: Function) -> None:
        self._function = function
        self._kept: list[Batch] = []
        self._rows = 0

    def process(self, items: Iterable[Batch]) -> Iterable[Batch]:
        for batch in items:
            self._kept.append(batch)
            self._rows += batch.num_rows
            if self._rows >= max(self.MAX_ROWS, 2 * self._kept[0].num_rows):
                self._reduce()
        return ()

    def _reduce(self) -> None:
        if not self._kept:
            return
        table = pa.Table.from_batches(self._kept)
        key, *values = table.column_names
        reduced = table.group_by(key, use_threads=False).aggregate([(value, self._function) for value in values])
        reduced = reduced.select([key, *(f"{value}_{self._function}" for value in values)]).rename_columns([key, *values])
        self._kept = reduced.combine_chunks().to_batches()
        self._rows = reduced.num_rows

    def finish(self) -> Iterable[Batch]:
        self._reduce()
        for batch in self._kept:
            for at in range(0, batch.num_rows, 1 << 16):
                yield batch.slice(at, 1 << 16)

    def snapshot(self) -> Any:
        self._reduce()
        return _serialise(self._kept, self._kept[0].schema) if self._kept else None

    def restore(self, kept: Any) -> None:
        self._kept = list(self.deserialise(memoryview(kept))) if kept else []
        self._rows = sum(batch.num_rows for batch in self._kept)


class _Rows(ArrowWorker):
    """Converts record batches to tuples."""

    def serialise(self, items: Iterable[Item]) -> Iterator[bytes]:
        yield _native.encode(items)

    def divide(self, items: list[Item], consumers: int) -> list[list[Item]]:
        return Worker.divide(self, items, consumers)

    def process(self, items: Iterable[Batch]) -> Iterable[Item]:
        for batch in items:
            yield from zip(*(column.to_pylist() for column in batch.columns))


def _serialise(batches: list[Batch], schema: Any) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    serialised: bytes = out.getvalue().to_pybytes()
    return serialised


def _rows(batch: Batch, consumers: int) -> list[Any]:
    """Returns the row indexes of each consumer."""
    partitions = _partitions(batch.column(0), consumers)
    return [pa.compute.indices_nonzero(pa.compute.equal(partitions, consumer)) for consumer in range(consumers)]


def _partitions(keys: Any, consumers: int) -> Any:
    """Returns the consumer of each key. Strings and integers are hashed in place; other keys once per distinct value."""
    if pa.types.is_dictionary(keys.type):
        if keys.null_count == 0 and keys.dictionary.null_count == 0:
            return _partitions(keys.dictionary, consumers).take(keys.indices)
        keys = keys.dictionary_decode()
    if pa.types.is_large_string(keys.type) or pa.types.is_string_view(keys.type):
        keys = keys.cast(pa.string())
    if pa.types.is_string(keys.type) and len(keys):
        return _with_null_keys(keys, consumers, _text_partitions)
    if pa.types.is_integer(keys.type) and keys.type != pa.uint64() and len(keys):
        return _with_null_keys(keys.cast(pa.int64()), consumers, _integer_partitions)
    if pa.types.is_timestamp(keys.type) and keys.type.unit == "ns":
        # Python's datetime has microseconds.
        keys = keys.cast(pa.timestamp("us", keys.type.tz), safe=False)
    distinct = keys.dictionary_encode(null_encoding="encode")
    return _uint32_array(_native.key_partitions(distinct.dictionary.to_pylist(), consumers)).take(distinct.indices)


def _with_null_keys(keys: Any, consumers: int, partitions: Callable[[Any, int], Any]) -> Any:
    """Returns the consumer of each key, where all nulls are one key."""
    found = partitions(keys, consumers)
    if not keys.null_count:
        return found
    of_null = pa.scalar(_native.key_partition(None, consumers), pa.uint32())
    return pa.compute.if_else(keys.is_valid(), found, of_null)


def _text_partitions(keys: Any, consumers: int) -> Any:
    _, ends, text = (memoryview(part or b"").cast("B") for part in keys.buffers())
    return _uint32_array(_native.text_partitions(ends[4 * keys.offset :][: 4 * len(keys) + 4], text, consumers))


def _integer_partitions(keys: Any, consumers: int) -> Any:
    _, numbers = (memoryview(part or b"").cast("B") for part in keys.buffers())
    return _uint32_array(_native.integer_partitions(numbers[8 * keys.offset :][: 8 * len(keys)], consumers))


def _uint32_array(data: bytes) -> Any:
    return pa.Array.from_buffers(pa.uint32(), len(data) // 4, [None, pa.py_buffer(data)])


def source(
    make: Callable[[int, int], Iterable[Batch]], workers: int = 1, name: str | None = None, total: int | None = None
) -> Stage:
    """Yields the record batches of `make(number, of)`. `total` counts batches."""
    return Stage(_with_stage_name("source", functools.partial(_Source, make)), workers, name, total=total)


def map(change: Callable[[Batch], Batch], workers: int = 1, name: str | None = None) -> Stage:
    return Stage(_with_stage_name("map", functools.partial(_Map, change)), workers, name)


def reduce_by_key(function: Function, workers: int = 1, name: str | None = None) -> Stage:
    """Reduces each distinct value of the first column to one row: sum, minimum or maximum of each other column."""
    return Stage(_with_stage_name("reduce-by-key", functools.partial(_Reduce, function)), workers, name, reads="by-key")


def rows(workers: int = 1, name: str | None = None) -> Stage:
    """Converts record batches to tuples for other stages."""
    return Stage(_with_stage_name("rows", _Rows), workers, name)
