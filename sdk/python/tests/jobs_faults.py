"""Jobs whose workers misbehave."""

import os
import pathlib
import subprocess
import time

from jobs_remote import is_first_call

from nearpath import dataflow as flow


def endless_first_start(folder):
    """Runs a worker without streams. Its first start does not end."""

    def make(number, of):
        if is_first_call(folder, "begun"):
            while True:
                yield time.sleep(0.01)
        yield 1

    return flow.source(make).on("there")


def leaves_processes(folder):
    """Starts a process that outlives the worker. The first start also dies."""

    def make(number, of):
        dies = is_first_call(folder, "died")
        child = subprocess.Popen(["sleep", "1000"])
        pathlib.Path(folder, f"pid-{child.pid}").touch()
        if dies:
            os._exit(0)
        yield 1

    return flow.source(make) >> flow.collect()


def raises_long_error():
    def change(item):
        raise ValueError("so it is: " + "x" * (3 << 20))

    return flow.source(lambda number, of: [1]) >> flow.map(change) >> flow.collect()


class NamedResult(flow.Worker):
    """Names the file that `name` returns for its folder as its result."""

    def __init__(self, name, place):
        self._name, self._place = name, place

    def result(self):
        return self._name(self.folder), self._place


def names_result(name, place):
    source = flow.source(lambda number, of: range(10))
    return [source >> flow.stage(lambda: NamedResult(lambda folder: name, place), name="names"), source >> flow.collect()]
