"""A job for functions that sums by key. Its sources request workers while it runs."""

import time

from nearpath import dataflow as flow

# The number of workers that a source requests, by the item before which it does so.
# One source yields the even items and the other the odd ones. Their requests exceed `max_workers`.
WORKER_REQUESTS = {400: 1, 701: 1, 1000: 3}


class NumberSource(flow.Worker):
    """Yields numbers with a pause before each, and requests workers."""

    def __init__(self, count, pause):
        self.count, self.pause = count, pause

    def input(self, port):
        for number in range(self.number, self.count, self.of):
            if number in WORKER_REQUESTS:
                self.grow(WORKER_REQUESTS[number])
            time.sleep(self.pause)
            yield number


def job(count, keys, pause):
    feed = flow.stage(lambda: NumberSource(count, pause), workers=2, name="feed")
    work = flow.map(lambda number: (number % keys, number), max_workers=4, name="work")
    return feed >> work >> flow.reduce_by_key(int.__add__, workers=2) >> flow.collect()


def expected(count, keys):
    return {key: sum(range(key, count, keys)) for key in range(keys)}
