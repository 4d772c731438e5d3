"""Sums by key, shaped like the published job (101 files, 44.5 million pairs, 1.9 million keys), made smaller.

    python3 reduce.py --files 4 --pairs 20000 --keys 850 --reducers 3
"""

import argparse
import random

from nearpath import dataflow as flow


def pairs(number, pairs, keys):
    """Makes one file's pairs: mixed keys, small values."""
    draw = random.Random(number)
    for _ in range(pairs):
        yield draw.randrange(keys), draw.randrange(100)


def graph(files, count, keys, reducers):
    source = flow.source(lambda number, of: pairs(number, count, keys), files, name="files", total=files * count)
    return source >> flow.reduce_by_key(int.__add__, reducers, name="sum") >> flow.collect()


def expected(files, count, keys):
    """Returns the same sums without a job."""
    sums = {}
    for number in range(files):
        for key, value in pairs(number, count, keys):
            sums[key] = sums.get(key, 0) + value
    return sums


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    for name, default in [("files", 4), ("pairs", 20_000), ("keys", 850), ("reducers", 3)]:
        options.add_argument(f"--{name}", type=int, default=default)
    arguments = options.parse_args()
    job = flow.run(graph(arguments.files, arguments.pairs, arguments.keys, arguments.reducers))
    print(job.report)
    is_correct = dict(job.results) == expected(arguments.files, arguments.pairs, arguments.keys)
    raise SystemExit(None if is_correct else "the sums are wrong")
