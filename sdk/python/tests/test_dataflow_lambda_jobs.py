"""Whole jobs on the Lambda double with a real rendezvous. Faults of environments: slow_dataflow_lambda_jobs.py."""

import importlib
import pathlib
import re
import sys
import unittest
import warnings

from lambda_fixture import LambdaCase, wait_until
from rendezvous_fixture import Rendezvous

from nearpath import dataflow as flow

GUIDE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "guide" / "dataflow-lambda.md"
HELD = """
import socket, time

from nearpath import dataflow as flow

COUNT, KEYS = 20_000, 100

def hold(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"here")
        connection.recv(2)

def numbers(number, of, port):
    for at in range(number, COUNT, of):
        if at == COUNT // 2:
            hold(port)
        yield at

def pair(number):
    return number % KEYS, number

def job(port):
    source = flow.source(lambda number, of: numbers(number, of, port), workers=2, name="numbers")
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
        print("printed by the worker")
        raise LookupError("no such number")
    return number

def failing():
    return flow.source(lambda number, of: range(1000), name="numbers") >> flow.map(wrong, workers=2, name="wrong") >> flow.collect()
"""


def sums(count=20_000, keys=100):
    return {key: sum(range(key, count, keys)) for key in range(keys)}


class LambdaJobCase(LambdaCase):
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

    def run_job(self, name, module, job="job", **options):
        """Runs a job on the function `name`."""
        options = {"on": self.place(name), "rendezvous": self.rendezvous.url, "key": self.rendezvous.key, "progress": False, **options}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a time limit without checkpoints
            return flow.run(getattr(importlib.import_module(module), job), **options)

    def busy(self, name):
        return [environment for environment in self.lambdas.environments(name) if environment["busy"]]


class LambdaJobTests(LambdaJobCase):
    def test_the_guides_job_gives_exact_counts(self):
        self.lambdas.create("wordcount", self.zip, timeout=50)
        job = self.run_job("wordcount", "wordcount")
        self.assertEqual(dict(job.results), {"one": 14400, "two": 6400, "three": 6400, "four": 6400, "five": 6400})
        self.assertEqual(job.report.restarts, [])
        self.assertEqual(len(self.lambdas.environments("wordcount")), 6)
        wait_until(lambda: not self.busy("wordcount"))  # no paid invocation outlasts the job

    def test_an_exception_is_reported_and_printed_output_is_logged(self):
        self.lambdas.create("failing", self.zip, timeout=50)
        with self.assertRaisesRegex(flow.JobFailed, "LookupError: no such number") as raised:
            self.run_job("failing", "held", "failing")
        self.assertRegex(raised.exception.worker, r"wrong\.\d")
        self.assertIn("printed by the worker", self.lambdas.read_log())
        wait_until(lambda: not self.busy("failing"))


if __name__ == "__main__":
    unittest.main()
