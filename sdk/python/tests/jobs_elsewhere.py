"""Jobs as workers elsewhere import them."""

import contextlib
import os
import pathlib
import signal
import time

from nearpath import dataflow as flow
from nearpath.dataflow._workers import ReduceByKey


def once(folder, name):
    """True the first time that any process asks."""
    with contextlib.suppress(FileExistsError):
        pathlib.Path(folder, name).touch(exist_ok=False)
        return True
    return False


def numbers(count, pause):
    def make(number, of, done=0):
        for item in range(number + done * of, count, of):
            if pause and item % 10 == number:
                time.sleep(pause * 10)
            yield item

    return make


def summing(count, keys, folder=".", pause=0.0, hits=(), stage="map", resumes=True):
    """Sums by key. Whoever handles one of those items in that stage is hit by a signal, once."""

    def change(number):
        for at, how in hits:
            if number == at and once(folder, f"hit-{at}"):
                os.kill(os.getpid(), how)
        return number

    def keyed(number):
        return (change(number) if stage == "map" else number) % keys, number

    def add(left, right):
        return left + (change(right) if stage == "reduce" else right)

    def make(number, of, done=0):
        for item in numbers(count, pause)(number, of, done):
            yield change(item) if stage == "source" else item

    pairs = flow.source(make, workers=2, resumes=resumes) >> flow.map(keyed, workers=3)
    return pairs >> flow.reduce_by_key(add, workers=3) >> flow.collect()


def sums(count, keys):
    made = {}
    for number in range(count):
        made[number % keys] = made.get(number % keys, 0) + number
    return made


class Sum(flow.Worker):
    """Slow where a file says so: the first process of its third worker, if that may be."""

    def __init__(self, folder, pause, is_skewed):
        self.flags, self.pause, self.is_skewed = folder, pause, is_skewed

    def start(self):
        self.sum = 0
        self.is_slow = self.number == 2 and not self.is_skewed and once(self.flags, "slow")

    def process(self, items):
        for _, item, _ in items:
            time.sleep(self.pause * (20 if self.is_slow else 1))
            self.sum += item
        return ()

    def finish(self):
        yield self.sum

    def snapshot(self):
        return self.sum

    def restore(self, kept):
        self.sum = kept or 0


def one_is_slow(count, folder, pause, is_skewed=False):
    """Items so long that ten are a batch; skewed: most have one key."""

    def make(number, of):
        yield from ((0 if is_skewed and item % 4 else item, item, "x" * 1600) for item in range(count))

    sums = flow.stage(lambda: Sum(folder, pause, is_skewed), workers=4, name="sum", reads="by-key")
    return flow.source(make) >> sums >> flow.collect()


class Forgets(ReduceByKey):
    def restore(self, kept):
        super().restore(None)


def forgetful(count, keys, folder, remembers):
    """Its sums are wrong after a death, if its reducer does not take back what it had. The death is behind a checkpoint."""

    def make(number, of, done=0):
        for item in range(number + done * of, count, of):
            if item >= count // 2 and not any(pathlib.Path(folder, "checkpoints").glob("**/complete")):
                time.sleep(0.02)
            yield item

    def keyed(item):
        if item == count - 1 and once(folder, "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return item % keys, item

    pairs = flow.source(make, workers=2, resumes=True) >> flow.map(keyed, workers=2)
    reduce = flow.reduce_by_key(add) if remembers else flow.stage(lambda: Forgets(add), name="forgets", reads="by-key")
    return pairs >> reduce >> flow.collect()


def add(left, right):
    return left + right


class Dies(flow.Worker):
    """Before its streams carry anything."""

    def __init__(self, folder):
        self.mark = folder

    def start(self):
        if self.number == 1 and once(self.mark, "died"):
            os.kill(os.getpid(), signal.SIGKILL)


def dying_early(count, folder):
    return flow.source(numbers(count, 0.0), workers=2) >> flow.stage(lambda: Dies(folder), workers=2, name="dies") >> flow.collect()


def wrong(count):
    def change(number):
        if number == 7:
            raise LookupError("no such number")
        return number

    return flow.source(numbers(count, 0.0)) >> flow.map(change) >> flow.collect()


def different(path):
    """Another graph each time that it is called."""
    workers = 2 if once(path, "called") else 3
    return flow.source(numbers(10, 0.0), workers=workers) >> flow.collect()


class Counted(flow.Worker):
    """Writes down its number before anything comes."""

    def __init__(self, folder):
        self.pids = folder

    def start(self):
        pathlib.Path(self.pids, f"pid-{os.getpid()}").touch()


def forever(folder):
    """Five workers, all of them counted."""

    def make(number, of):
        pathlib.Path(folder, f"pid-{os.getpid()}").touch()
        while True:
            yield time.sleep(0.01)

    change = flow.stage(lambda: Counted(folder), workers=2, name="map")
    return flow.source(make, workers=2) >> change >> flow.stage(lambda: Counted(folder), name="sink").on("here")
