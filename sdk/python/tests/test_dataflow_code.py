"""A job's code as workers elsewhere find it."""

import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import jobs_remote as jobs

from nearpath.dataflow import _code
from nearpath.dataflow._code import Code


class JobCodeTests(unittest.TestCase):
    def test_a_function_of_a_module_is_found_by_name(self):
        code = Code.of(jobs.summing, {"count": 1, "keys": 2})
        self.assertEqual(code.to_dict(), {"module": "jobs_remote", "name": "summing", "arguments": {"count": 1, "keys": 2}})
        self.assertEqual(code.folder(), str(pathlib.Path(jobs.__file__).parent))
        self.assertEqual(_code.mark(code.call()), _code.mark(_code.graph(jobs.summing(9, 9))), "the same stages")
        self.assertNotEqual(_code.mark(code.call()), _code.mark(_code.graph(jobs.raises_lookup_error(1))))

    def test_missing_code_is_reported(self):
        for code in [Code("no_such_module", "job"), Code("jobs_remote", "no_such_job")]:
            with self.assertRaisesRegex(ImportError, f"cannot import {code.module}.{code.name} .*PYTHONPATH"):
                code.call()

    def test_code_that_returns_no_job_is_refused(self):
        with self.assertRaisesRegex(TypeError, "not dict"):
            Code("jobs_remote", "sums", {"count": 1, "keys": 1}).call()


class MainProgramTests(unittest.TestCase):
    """The job is defined in the program that runs it."""

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

    def test_a_job_in_a_script_is_found_by_the_scripts_name(self):
        self.assertEqual(self.output(str(self.folder / "words.py")), f"words job {self.folder}")

    def test_a_job_in_a_main_module_is_found_by_the_modules_name(self):
        self.assertEqual(self.output("-m", "words", cwd=self.folder), f"words job {self.folder}")

    def test_a_script_with_an_invalid_module_name_is_refused(self):
        self.assertRegex(self.output(str(self.folder / "my-words.py")), "this program has no importable name")

    def test_a_program_without_a_file_is_refused(self):
        output = self.output("-c", (self.folder / "words.py").read_text())
        self.assertRegex(output, "this program has no importable name")

    def test_a_module_that_runs_its_job_on_import_is_refused(self):
        output = self.output("-c", "from nearpath.dataflow import _code; _code.is_worker = True; import words", cwd=self.folder)
        self.assertRegex(output, "behind `if __name__ == \"__main__\":`")


if __name__ == "__main__":
    unittest.main()
