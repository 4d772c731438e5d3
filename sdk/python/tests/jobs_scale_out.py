"""Jobs that scale out, for local and remote workers."""

import os
import pathlib
import time

from jobs_remote import is_first_call

from nearpath import dataflow as flow


class SignalAtItem:
    """Sends a signal to its process at each of the given items, once."""

    def __init__(self, folder, signals):
        self.folder, self.signals = folder, dict(signals)

    def __call__(self, item):
        if item in self.signals and is_first_call(self.folder, f"signal-{item}"):
            os.kill(os.getpid(), self.signals[item])


class NumberSource(flow.Worker):
    """Yields numbers. Requests workers before some of them, and records the granted numbers."""

    def __init__(self, count, worker_requests, pause, folder, signal_at):
        self.count, self.worker_requests, self.pause, self.notes, self.signal_at = count, dict(worker_requests), pause, folder, signal_at

    def input(self, port):
        for item in range(self.number, self.count, self.of):
            if item in self.worker_requests:
                granted = self.grow(self.worker_requests[item])
                pathlib.Path(self.notes, f"granted-{item}").write_text(str(granted))
            if self.pause and item % 10 == self.number:
                time.sleep(10 * self.pause)
            self.signal_at(item)
            yield item


class PairWorker(flow.Worker):
    """Makes pairs of numbers, and records its name."""

    def __init__(self, keys, folder, signal_at):
        self.keys, self.notes, self.signal_at = keys, folder, signal_at

    def start(self):
        pathlib.Path(self.notes, f"worked-{self.name}").touch()

    def process(self, items):
        for item in items:
            self.signal_at(item)
            yield item % self.keys, item


def scaling_out(count, keys, folder, worker_requests=(), pause=0.0, signals=(), stage="work", max_workers=6, feeds=2):
    """Sums by key through a stage that scales out."""

    def signal_at(name):
        return SignalAtItem(folder, signals if name == stage else ())

    def add(left, right):
        signal_at("reduce")(right)
        return left + right

    feed = flow.stage(lambda: NumberSource(count, worker_requests, pause, folder, signal_at("feed")), workers=feeds, name="feed")
    work = flow.stage(lambda: PairWorker(keys, folder, signal_at("work")), max_workers=max_workers, name="work")
    return feed >> work >> flow.reduce_by_key(add, workers=2) >> flow.collect()
