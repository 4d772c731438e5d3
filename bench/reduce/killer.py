"""Kills workers in the middle of a job, as the machines below them might."""

import os
import random
import signal
import threading
from collections.abc import Iterator


class Killer(threading.Thread):
    """After so many seconds, so many of the processes that `root` has started and that start none themselves."""

    def __init__(self, root: int, seed: int, seconds: float, many: int) -> None:
        super().__init__(daemon=True)
        self._root, self._draw, self._seconds, self._many = root, random.Random(seed), seconds, many
        self._over = threading.Event()
        self.killed = 0

    def run(self) -> None:
        if self._over.wait(self._seconds):
            return
        alive = sorted(leaves(self._root))
        for pid in self._draw.sample(alive, min(self._many, len(alive))):
            os.kill(pid, signal.SIGKILL)
            self.killed += 1

    def end(self) -> int:
        """How many it has killed."""
        self._over.set()
        self.join()
        return self.killed


def leaves(pid: int) -> Iterator[int]:
    for child in children(pid):
        below = list(leaves(child))
        yield from below or [child]


def children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return [int(child) for task in tasks for child in read(f"/proc/{pid}/task/{task}/children").split()]
    except FileNotFoundError:
        return []


def read(path: str) -> str:
    with open(path) as file:
        return file.read()
