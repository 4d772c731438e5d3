"""Whole jobs on Lambda's stand-in, behind a real rendezvous: what they make. Whatever happens to
environments: slow_dataflow_lambda_jobs.py."""

import importlib
import pathlib
import re
import sys
import unittest
import warnings

from lambdas import OnLambda, until
from rendezvous_fixture import Rendezvous

from nearpath import dataflow as flow

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guide" / "dataflow-lambda.md"
HELD = """
import socket, time

from nearpath import dataflow as flow

COUNT, KEYS = 20_000, 100

def hold(door):
    with socket.create_connection(("127.0.0.1", door)) as line:
        line.sendall(b"here")
        line.recv(2)

def numbers(number, of, door):
    for at in range(number, COUNT, of):
        if at == COUNT // 2:
            hold(door)
        yield at

def pair(number):
    return number % KEYS, number

def job(door):
    source = flow.source(lambda number, of: numbers(number, of, door), workers=2, name="numbers")
    return source >> flow.map(pair, workers=2, name="pair") >> flow.reduce_by_key(int.__add__, workers=2, name="sum") >> flow.collect()

def slowly(number, of, made, count):
    for at in range(number + made * of, count, of):
        time.sleep(0.01)
        yield at

def long(count):
    source = flow.source(lambda number, of, made: slowly(number, of, made, count), workers=2, name="numbers", resumes=True)
    return source >> flow.map(pair, workers=2, name="pair") >> flow.reduce_by_key(int.__add__, workers=2, name="sum") >> flow.collect()

def wrong(number):
    if number == 700:
        print("this is what it prints")
        raise LookupError("no such number")
    return number

def failing():
    return flow.source(lambda number, of: range(1000), name="numbers") >> flow.map(wrong, workers=2, name="wrong") >> flow.collect()
"""


def sums(count=20_000, keys=100):
    return {key: sum(range(key, count, keys)) for key in range(keys)}


class Jobs(OnLambda):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from nearpath.dataflow.aws import _package

        cls.rendezvous = Rendezvous(cls.folder)
        cls.addClassCleanup(cls.rendezvous.stop)
        guide = re.search(r"```python\n(.*?)```", GUIDE.read_text(), re.S)[1]
        for name, text in ("wordcount", guide), ("held", HELD), ("forgotten", "def job():\n    pass\n"):
            (cls.folder / f"{name}.py").write_text(text)
        sys.path.insert(0, str(cls.folder))
        cls.addClassCleanup(sys.path.remove, str(cls.folder))
        code = [cls.folder / "wordcount.py", cls.folder / "held.py"]
        cls.zip = _package.make(cls.folder / "jobs.zip", code, _package.Target()).path

    def run_job(self, name, module, job="job", **said):
        """On a function of that name."""
        said = {"on": self.place(name), "rendezvous": self.rendezvous.url, "key": self.rendezvous.key, "progress": False, **said}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a place with a limit wants checkpoints
            return flow.run(getattr(importlib.import_module(module), job), **said)

    def busy(self, name):
        return [environment for environment in self.lambdas.environments(name) if environment["busy"]]


class Whole(Jobs):
    def test_the_guides_job(self):
        self.lambdas.create("wordcount", self.zip, timeout=50)
        job = self.run_job("wordcount", "wordcount")
        self.assertEqual(dict(job.results), {"one": 14400, "two": 6400, "three": 6400, "four": 6400, "five": 6400})
        self.assertEqual(job.report.restarts, [])
        self.assertEqual(len(self.lambdas.environments("wordcount")), 6)
        until(lambda: not self.busy("wordcount"))  # nobody works, and is paid, for a job that is through

    def test_what_a_workers_code_raises_is_told_and_what_it_prints_is_in_the_log(self):
        self.lambdas.create("failing", self.zip, timeout=50)
        with self.assertRaisesRegex(flow.JobFailed, "LookupError: no such number") as raised:
            self.run_job("failing", "held", "failing")
        self.assertRegex(raised.exception.worker, r"wrong\.\d")
        self.assertIn("this is what it prints", self.lambdas.written())
        until(lambda: not self.busy("failing"))


if __name__ == "__main__":
    unittest.main()
