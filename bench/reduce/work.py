"""What mappers and reducers do, whichever way the data goes between them: the same code, the same bytes."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from nearpath.dataflow import arrow

Batch: TypeAlias = Any  # pyarrow.RecordBatch


@dataclass(frozen=True)
class Job:
    """What every way has to do, with how many workers."""

    folder: str  # of the files
    files: int
    mappers: int
    reducers: int
    out: str  # for the sums

    def of(self, mapper: int) -> range:
        """The files of a mapper."""
        return range(mapper, self.files, self.mappers)


def mapped(job: Job, mapper: int) -> Iterator[Batch]:
    """The pairs of a mapper's files, those of one word joined."""
    tables = [read(os.path.join(job.folder, f"{file:03}.parquet")) for file in job.of(mapper)]
    sums = pa.concat_tables(tables).group_by("word", use_threads=False).aggregate([("count", "sum")]).rename_columns(["word", "count"])
    yield from sums.combine_chunks().to_batches()


def read(path: str) -> pa.Table:
    with pq.ParquetFile(path) as pairs:
        return pairs.read(use_threads=False)


def parts(job: Job, mapper: int) -> list[bytes]:
    """What each reducer gets of a mapper: Arrow's IPC stream."""
    codec = arrow.ArrowWorker()
    divided = codec.divide(list(mapped(job, mapper)), job.reducers)
    return [b"".join(codec.serialise(part)) for part in divided]


class Reduction:
    """The sums of one reducer, from what mappers sent."""

    def __init__(self) -> None:
        self._sums = arrow.reduce_by_key("sum").worker()

    def add(self, part: Any) -> None:
        self._sums.process(self._sums.deserialise(memoryview(part)))

    def write(self, job: Job, reducer: int) -> None:
        write(job, reducer, self._sums.finish())


def write(job: Job, reducer: int, batches: Iterable[Batch]) -> None:
    """A reducer's part of the result. What was written before, by one that died, is replaced."""
    path = os.path.join(job.out, f"sums-{reducer}.arrow")
    schema = pa.schema([pa.field("word", pa.string()), pa.field("count", pa.int64())])
    with pa.OSFile(f"{path}.{os.getpid()}", "wb") as file, pa.ipc.new_file(file, schema) as out:
        for batch in batches:
            out.write_batch(batch)
    os.replace(f"{path}.{os.getpid()}", path)
