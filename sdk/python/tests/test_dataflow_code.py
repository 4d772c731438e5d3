"""A job's code as workers elsewhere find it."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import jobs_elsewhere as jobs

from nearpath.dataflow import _code
from nearpath.dataflow._code import Code


class Codes(unittest.TestCase):
    def test_a_function_of_a_module(self):
        code = Code.of(jobs.summing, {"count": 1, "keys": 2})
        self.assertEqual(code.to_dict(), {"module": "jobs_elsewhere", "name": "summing", "arguments": {"count": 1, "keys": 2}})
        self.assertEqual(code.folder(), str(pathlib.Path(jobs.__file__).parent))
        self.assertEqual(_code.mark(code.call()), _code.mark(_code.graph(jobs.summing(9, 9))), "the same stages")
        self.assertNotEqual(_code.mark(code.call()), _code.mark(_code.graph(jobs.wrong(1))))

    def test_what_is_not_there_is_told(self):
        for code in [Code("no_such_module", "job"), Code("jobs_elsewhere", "no_such_job")]:
            with self.assertRaisesRegex(ImportError, f"cannot import {code.module}.{code.name} .*PYTHONPATH"):
                code.call()

    def test_what_is_no_job_is_told(self):
        with self.assertRaisesRegex(TypeError, "not dict"):
            Code("jobs_elsewhere", "sums", {"count": 1, "keys": 1}).call()


class Programs(unittest.TestCase):
    """The job is in the program that runs it."""

    PROGRAM = """
        from nearpath import dataflow as flow
        from nearpath.dataflow._code import Code

        def job():
            return flow.source(range) >> flow.collect()

        if __name__ == "__main__":
            code = Code.of(job, {})
            print(code.module, code.name, code.folder())
        else:
            flow.run(job)
    """

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        (self.folder / "words.py").write_text(textwrap.dedent(self.PROGRAM))
        (self.folder / "my-words.py").write_text(textwrap.dedent(self.PROGRAM))

    def output(self, *arguments, cwd=None):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        ran = subprocess.run([sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True)
        return ran.stdout.strip() or ran.stderr.strip()

    def test_a_file(self):
        self.assertEqual(self.output(str(self.folder / "words.py")), f"words job {self.folder}")

    def test_a_module(self):
        self.assertEqual(self.output("-m", "words", cwd=self.folder), f"words job {self.folder}")

    def test_a_file_whose_name_is_no_module(self):
        self.assertRegex(self.output(str(self.folder / "my-words.py")), "this program has no name that can be imported")

    def test_text_that_is_no_file(self):
        told = self.output("-c", (self.folder / "words.py").read_text())
        self.assertRegex(told, "this program has no name that can be imported")

    def test_a_module_that_runs_its_job_when_it_is_imported(self):
        told = self.output("-c", "from nearpath.dataflow import _code; _code.is_worker = True; import words", cwd=self.folder)
        self.assertRegex(told, "behind `if __name__ == \"__main__\":`")


if __name__ == "__main__":
    unittest.main()
