"""Jobs whose workers misbehave."""

import os
import pathlib
import subprocess
import time

from jobs_elsewhere import once

from nearpath import dataflow as flow


def alone(folder):
    """A worker that nobody streams with. The first start has no end."""

    def make(number, of):
        if once(folder, "begun"):
            while True:
                yield time.sleep(0.01)
        yield 1

    return flow.source(make).on("there")


def leaving(folder):
    """The first start leaves a process, and dies; the second one leaves another, and is through."""

    def make(number, of):
        dies = once(folder, "died")
        child = subprocess.Popen(["sleep", "1000"])
        pathlib.Path(folder, f"pid-{child.pid}").touch()
        if dies:
            os._exit(0)
        yield 1

    return flow.source(make) >> flow.collect()


def verbose():
    def change(item):
        raise ValueError("so it is: " + "x" * (3 << 20))

    return flow.source(lambda number, of: [1]) >> flow.map(change) >> flow.collect()


class Names(flow.Worker):
    """Says of a file that it has made it: of the one that `name` gives for its folder."""

    def __init__(self, name, place):
        self._name, self._place = name, place

    def result(self):
        return self._name(self.folder), self._place


def naming(name, place):
    source = flow.source(lambda number, of: range(10))
    return [source >> flow.stage(lambda: Names(lambda folder: name, place), name="names"), source >> flow.collect()]
