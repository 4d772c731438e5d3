"""A job for functions that grows: sums by key, of sources that ask for workers on their way."""

import time

from nearpath import dataflow as flow

ASKS = {400: 1, 701: 1, 1000: 3}


class Feed(flow.Worker):
    """Numbers, and so many seconds for each."""

    def __init__(self, count, pause):
        self.count, self.pause = count, pause

    def input(self, port):
        for number in range(self.number, self.count, self.of):
            if number in ASKS:
                self.grow(ASKS[number])
            time.sleep(self.pause)
            yield number


def job(count, keys, pause):
    feed = flow.stage(lambda: Feed(count, pause), workers=2, name="feed")
    work = flow.map(lambda number: (number % keys, number), most=4, name="work")
    return feed >> work >> flow.reduce_by_key(int.__add__, workers=2) >> flow.collect()


def expected(count, keys):
    return {key: sum(range(key, count, keys)) for key in range(keys)}
