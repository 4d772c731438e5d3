"""One job, one way, in a process of its own: what it took, as a line of JSON."""

import argparse
import json
import os
import time
from typing import Any

import account
import by_dataflow
import by_redis
import by_s3
import processors
import pyarrow as pa
from forks import Forks, Machines
from work import Job


def main() -> None:
    given = options()
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    slowed = processors.Slowed(given.slow) if given.slow > 1 else None
    began = time.monotonic()
    try:
        run(given)
        seconds = time.monotonic() - began
    finally:
        if slowed:
            slowed.close()
    print(json.dumps({"seconds": seconds} | account.bill(account.notes(given.out))))


def options() -> argparse.Namespace:
    words = argparse.ArgumentParser()
    words.add_argument("way", choices=["nearpath", "s3", "s3, staged", "redis"])
    words.add_argument("--folder", required=True, help="of the files")
    words.add_argument("--out", required=True, help="for the sums")
    words.add_argument("--files", type=int, required=True)
    words.add_argument("--workers", type=int, required=True, help="reducers among them")
    words.add_argument("--reducers", type=int, required=True)
    words.add_argument("--slow", type=float, default=1.0, help="so many times; each worker has that part of a processor")
    words.add_argument("--every", type=float, default=5.0, help="seconds between checkpoints")
    words.add_argument("--redis", nargs=2, help="its host and port")
    words.add_argument("--machines", nargs="*", default=[], help="network namespaces of the workers")
    words.add_argument("--rendezvous", nargs=3, help="its URL and the files of its key and certificate: workers meet there")
    return words.parse_args()


def run(given: argparse.Namespace) -> None:
    forks = Forks(given.out, Machines(given.machines))
    job = Job(given.folder, given.files, given.workers - given.reducers, given.reducers, given.out)
    if given.way == "nearpath":
        by_dataflow.run(job, **settings(given, forks))
    elif given.way == "redis":
        by_redis.run(forks, job, (given.redis[0], int(given.redis[1])))
    else:
        distance = by_s3.Distance(slow=given.slow)
        by_s3.run(forks, job, os.environ["S3_ENDPOINT"], distance, given.way == "s3, staged")


def settings(given: argparse.Namespace, forks: Forks) -> dict[str, Any]:
    """Of the job with nearpath."""
    usual = {"retries": 20, "checkpoint_interval": given.every * given.slow, "contact_timeout": 60 * given.slow, "silence_timeout": 10 * given.slow}
    if not given.rendezvous:
        return usual
    url, key, trust = given.rendezvous
    checkpoints = os.path.join(given.out, "checkpoints")
    return usual | {"on": by_dataflow.Warm(forks), "rendezvous": url, "key": key, "trust": trust, "checkpoints": checkpoints}


if __name__ == "__main__":
    main()
