"""A job for functions that sums by key."""

import os
import time

from nearpath import dataflow as flow


def job(count=4000, keys=50, workers=3, gate=None, pause=0, slow=None):
    """Runs its source on the leader's machine.

    The source waits once in the middle until the file `gate` is removed. It pauses for `pause` seconds per item, while the file
    `slow` exists if that is given.
    """
    make = numbers(count, gate, pause, slow)
    pairs = flow.source(make, name="numbers", resumes=True).on("here") >> flow.map(remainder(keys), workers=workers)
    return pairs >> flow.reduce_by_key(int.__add__, workers=workers) >> flow.collect()


def numbers(count, gate, pause, slow):
    def make(number, of, done):
        for value in range(number, count, of)[done:]:
            if gate and value == count // 2:
                wait_at(gate)
            if pause and (slow is None or os.path.exists(slow)):
                time.sleep(pause)
            yield value

    return make


def wait_at(gate):
    """Marks the gate as reached, and waits for its removal."""
    if os.path.exists(gate):
        os.rename(gate, f"{gate}.reached")
        while os.path.exists(f"{gate}.reached"):
            time.sleep(0.02)


def remainder(keys):
    return lambda value: (value % keys, value)


def expected(count=4000, keys=50):
    return {key: sum(range(key, count, keys)) for key in range(keys)}
