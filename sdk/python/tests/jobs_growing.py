"""Jobs that grow, as workers elsewhere import them, too."""

import os
import pathlib
import time

from jobs_elsewhere import once

from nearpath import dataflow as flow


class Hit:
    """Whoever handles one of those items is hit by a signal, once."""

    def __init__(self, folder, hits):
        self.folder, self.hits = folder, dict(hits)

    def __call__(self, item):
        if item in self.hits and once(self.folder, f"hit-{item}"):
            os.kill(os.getpid(), self.hits[item])


class Feed(flow.Worker):
    """Numbers; before some of them it asks for workers, and writes down how many it was given."""

    def __init__(self, count, asks, pause, folder, hit):
        self.count, self.asks, self.pause, self.notes, self.hit = count, dict(asks), pause, folder, hit

    def input(self, port):
        for item in range(self.number, self.count, self.of):
            if item in self.asks:
                given = self.grow(self.asks[item])
                pathlib.Path(self.notes, f"given-{item}").write_text(str(given))
            if self.pause and item % 10 == self.number:
                time.sleep(10 * self.pause)
            self.hit(item)
            yield item


class Work(flow.Worker):
    """Pairs of them; leaves its name behind."""

    def __init__(self, keys, folder, hit):
        self.keys, self.notes, self.hit = keys, folder, hit

    def start(self):
        pathlib.Path(self.notes, f"worked-{self.name}").touch()

    def process(self, items):
        for item in items:
            self.hit(item)
            yield item % self.keys, item


def growing(count, keys, folder, asks=(), pause=0.0, hits=(), stage="work", most=6, feeds=2):
    """Sums by key, through a stage that grows."""

    def hit(name):
        return Hit(folder, hits if name == stage else ())

    def add(left, right):
        hit("reduce")(right)
        return left + right

    feed = flow.stage(lambda: Feed(count, asks, pause, folder, hit("feed")), workers=feeds, name="feed")
    work = flow.stage(lambda: Work(keys, folder, hit("work")), most=most, name="work")
    return feed >> work >> flow.reduce_by_key(add, workers=2) >> flow.collect()
