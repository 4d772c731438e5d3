"""Jobs that remote workers import."""

import contextlib
import os
import pathlib
import signal
import time

from nearpath import dataflow as flow
from nearpath.dataflow._workers import ReduceByKey


def is_first_call(folder, name):
    """Returns True in the first call of any process."""
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


def summing(count, keys, folder=".", pause=0.0, signals=(), stage="map", resumes=True):
    """Sums by key. A worker that handles one of the items of `signals` in `stage` gets a signal, once."""

    def change(number):
        for at, number_of_signal in signals:
            if number == at and is_first_call(folder, f"signal-{at}"):
                os.kill(os.getpid(), number_of_signal)
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


class SlowSum(flow.Worker):
    """Sums items. The first process of its third worker is slow, unless keys are skewed."""

    def __init__(self, folder, pause, is_skewed):
        self.flags, self.pause, self.is_skewed = folder, pause, is_skewed

    def start(self):
        self.sum = 0
        self.is_slow = self.number == 2 and not self.is_skewed and is_first_call(self.flags, "slow")

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


def one_slow_worker(count, folder, pause, is_skewed=False):
    """Sums by key with batches of ten items. With `is_skewed` three quarters have one key."""

    def make(number, of):
        yield from ((0 if is_skewed and item % 4 else item, item, "x" * 1600) for item in range(count))

    sums = flow.stage(lambda: SlowSum(folder, pause, is_skewed), workers=4, name="sum", reads="by-key")
    return flow.source(make) >> sums >> flow.collect()


class ForgetfulReducer(ReduceByKey):
    def restore(self, kept):
        super().restore(None)


def forgetful(count, keys, folder, remembers):
    """Sums by key with a death after a checkpoint. The sums are wrong if the reducer does not restore its state."""

    def make(number, of, done=0):
        for item in range(number + done * of, count, of):
            if item >= count // 2 and not any(pathlib.Path(folder, "checkpoints").glob("**/complete")):
                time.sleep(0.02)
            yield item

    def keyed(item):
        if item == count - 1 and is_first_call(folder, "died"):
            os.kill(os.getpid(), signal.SIGKILL)
        return item % keys, item

    pairs = flow.source(make, workers=2, resumes=True) >> flow.map(keyed, workers=2)
    reduce = flow.reduce_by_key(add) if remembers else flow.stage(lambda: ForgetfulReducer(add), name="forgets", reads="by-key")
    return pairs >> reduce >> flow.collect()


def add(left, right):
    return left + right


class DiesAtStart(flow.Worker):
    """Dies once before its streams carry data."""

    def __init__(self, folder):
        self.mark = folder

    def start(self):
        if self.number == 1 and is_first_call(self.mark, "died"):
            os.kill(os.getpid(), signal.SIGKILL)


def dies_at_start(count, folder):
    return flow.source(numbers(count, 0.0), workers=2) >> flow.stage(lambda: DiesAtStart(folder), workers=2, name="dies") >> flow.collect()


def raises_lookup_error(count):
    def change(number):
        if number == 7:
            raise LookupError("no such number")
        return number

    return flow.source(numbers(count, 0.0)) >> flow.map(change) >> flow.collect()


def changing_graph(path):
    """Returns another graph in each call."""
    workers = 2 if is_first_call(path, "called") else 3
    return flow.source(numbers(10, 0.0), workers=workers) >> flow.collect()


class PidRecorder(flow.Worker):
    """Records its process id at its start."""

    def __init__(self, folder):
        self.pids = folder

    def start(self):
        pathlib.Path(self.pids, f"pid-{os.getpid()}").touch()


def endless(folder):
    """Runs five workers that record their process ids."""

    def make(number, of):
        pathlib.Path(folder, f"pid-{os.getpid()}").touch()
        while True:
            yield time.sleep(0.01)

    change = flow.stage(lambda: PidRecorder(folder), workers=2, name="map")
    return flow.source(make, workers=2) >> change >> flow.stage(lambda: PidRecorder(folder), name="sink").on("here")
