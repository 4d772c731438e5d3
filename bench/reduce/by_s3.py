"""The same job over an object store: a mapper writes one object, whose name says where each reducer's part ends; reducers list them and
read their parts of those that have come."""

import itertools
import os
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import boto3
import botocore.config
import work
from forks import Forks
from work import Job

BUCKET = "nearpath"
AT_ONCE = 16  # requests of one worker
PAUSE = 0.05  # seconds between two listings


@dataclass(frozen=True)
class Distance:
    """How far the store is: what its server on this machine lacks of S3.

    AWS says 100 to 200 ms until the first byte of a small object; measured from its own machines it is 20 to 40 for reading and 30 to 60
    for writing, and 50 to 90 MB/s a connection. The fast end of all of them is what is used. The requesting thread sleeps as long: a proxy
    between would take of the processors that the workers need.
    """

    read: float = 0.020  # seconds to the first byte, of a listing too
    write: float = 0.030
    rate: float = 90e6  # bytes a second and connection
    slow: float = 1.0  # all of it so many times

    def nap(self, first: float, size: int, began: float) -> None:
        """The rest of what such a request takes."""
        time.sleep(max(0.0, (first + size / self.rate) * self.slow - (time.monotonic() - began)))


class Store:
    """One bucket, by boto3, made as quick as it can be: connections are kept, times are not parsed, bodies neither signed nor summed."""

    def __init__(self, endpoint: str, distance: Distance) -> None:
        self._distance = distance
        session = boto3.Session()
        factory = session._session.get_component("response_parser_factory")
        factory.set_parser_defaults(timestamp_parser=str)
        config = botocore.config.Config(
            max_pool_connections=2 * AT_ONCE,
            retries={"mode": "standard", "max_attempts": 5},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path", "payload_signing_enabled": False},
        )
        self._client: Any = session.client("s3", endpoint_url=endpoint, config=config)

    def put(self, key: str, body: bytes) -> None:
        began = time.monotonic()
        self._client.put_object(Bucket=BUCKET, Key=key, Body=body)
        self._distance.nap(self._distance.write, len(body), began)

    def get(self, key: str, begin: int, end: int) -> bytes:
        """Those bytes of an object."""
        began = time.monotonic()
        answer = self._client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={begin}-{end - 1}")
        body: bytes = answer["Body"].read()
        self._distance.nap(self._distance.read, len(body), began)
        return body

    def list(self, prefix: str) -> list[str]:
        began = time.monotonic()
        page = self._client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)
        self._distance.nap(self._distance.read, 0, began)
        return [found["Key"] for found in page.get("Contents", ())]


def map_files(store: Store, prefix: str, job: Job, mapper: int) -> None:
    parts = work.parts(job, mapper)
    ends = "-".join(str(end) for end in itertools.accumulate(map(len, parts)))
    store.put(f"{prefix}/{mapper}-{ends}", b"".join(parts))


def reduce_part(store: Store, prefix: str, job: Job, pause: float, reducer: int) -> None:
    reduction = work.Reduction()
    for part in arriving(store, f"{prefix}/", reducer, job.mappers, pause):
        reduction.add(part)
    reduction.write(job, reducer)


def arriving(store: Store, prefix: str, reducer: int, mappers: int, pause: float) -> Iterator[bytes]:
    """Parts are read while others are still being written, and added while others are read."""
    came: queue.Queue[Future[bytes]] = queue.Queue()

    def found(key: str) -> None:
        ends = [0, *map(int, key.rsplit("/", 1)[1].split("-")[1:])]
        pool.submit(store.get, key, ends[reducer], ends[reducer + 1]).add_done_callback(came.put)

    with ThreadPoolExecutor(AT_ONCE + 1) as pool:
        looking: Future[Any] = pool.submit(look, store, prefix, mappers, pause, found)
        looking.add_done_callback(lambda done: came.put(done) if done.exception() else None)
        for _ in range(mappers):
            yield came.get().result()


def look(store: Store, prefix: str, mappers: int, pause: float, found: Callable[[str], None]) -> None:
    seen: set[str] = set()
    while len(seen) < mappers:
        new = [key for key in store.list(prefix) if key not in seen]
        seen.update(new)
        for key in new:
            found(key)
        time.sleep(pause)


def run(forks: Forks, job: Job, endpoint: str, distance: Distance, is_staged: bool) -> None:
    store, prefix = Store(endpoint, distance), f"job-{os.getpid()}"
    reduce_one = partial(reduce_part, store, prefix, job, PAUSE * distance.slow)
    forks.run(job, partial(map_files, store, prefix, job), reduce_one, is_staged)
