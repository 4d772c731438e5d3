"""The same job over Redis: a list per reducer. Mappers push their parts; reducers pop them and wait on empty lists."""

import os
import queue
import threading
from collections.abc import Iterator
from functools import partial
from typing import TypeAlias

import redis
import work
from forks import Forks
from work import Job

Server: TypeAlias = tuple[str, int]  # host and port
CONNECTIONS = 4  # of a reducer


def map_files(server: Server, prefix: str, job: Job, mapper: int) -> None:
    """Pushes all parts in one pipeline."""
    with redis.Redis(*server) as line, line.pipeline(transaction=False) as pipe:
        for reducer, part in enumerate(work.parts(job, mapper)):
            pipe.rpush(f"{prefix}/{reducer}", part)
        pipe.execute()


def reduce_part(server: Server, prefix: str, job: Job, reducer: int) -> None:
    reduction = work.Reduction()
    for part in arriving(server, f"{prefix}/{reducer}", job.mappers):
        reduction.add(part)
    reduction.write(job, reducer)


def arriving(server: Server, key: str, mappers: int) -> Iterator[bytes]:
    """Several connections wait on the list, so that parts arrive while others are processed."""
    came: queue.Queue[bytes] = queue.Queue(2 * CONNECTIONS)
    for _ in range(CONNECTIONS):
        threading.Thread(target=pop, args=(server, key, came), daemon=True).start()
    for _ in range(mappers):
        yield came.get()


def pop(server: Server, key: str, came: "queue.Queue[bytes]") -> None:
    with redis.Redis(*server, socket_timeout=None) as line:
        while True:
            came.put(line.blpop([key])[1])


def run(forks: Forks, job: Job, server: Server) -> None:
    prefix = f"job-{os.getpid()}"
    forks.run(job, partial(map_files, server, prefix, job), partial(reduce_part, server, prefix, job))
