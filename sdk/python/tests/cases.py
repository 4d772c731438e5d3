"""Base classes of job tests: a deadline, a temporary folder, and jobs that are ended by signals."""

import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import unittest.mock

from fixtures import DEADLINE

HERE = pathlib.Path(__file__).parent


def raise_timeout(*_):
    """Raises TimeoutError, so that cleanups of the test run."""
    raise TimeoutError("the test exceeded its deadline")


class DeadlineCase(unittest.TestCase):
    """Fails a test at its deadline."""

    seconds = DEADLINE

    def setUp(self):
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, raise_timeout))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(self.seconds)


class TemporaryFolderCase(DeadlineCase):
    """Uses a temporary directory of its own, to see remaining files of jobs and workers."""

    def setUp(self):
        super().setUp()
        self.folder = self.new_folder()
        self.temp = self.folder / "temp"
        self.temp.mkdir()
        self.enterContext(unittest.mock.patch.dict(os.environ, TMPDIR=str(self.temp)))
        self.enterContext(unittest.mock.patch.object(tempfile, "tempdir", str(self.temp)))

    def new_folder(self):
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def remaining_files(self):
        return list(self.temp.iterdir())


class SignalledJobCase(TemporaryFolderCase):
    """Runs jobs in their own processes. Workers record their process ids: `jobs_remote.endless`."""

    def start_program(self, program, *arguments):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]))
        command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
        job = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def exit_code_after(self, number, program, *arguments):
        """Sends a signal to a job with five running workers. Returns its exit code after all of them have ended."""
        pids = self.folder / "pids"
        pids.mkdir()
        job = self.start_program(program, pids, *arguments)
        while len(files := list(pids.iterdir())) < 5:
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        workers = [os.pidfd_open(int(file.name.removeprefix("pid-"))) for file in files]
        job.send_signal(number)
        code = job.wait()
        for worker in workers:
            select.select([worker], [], [])  # readable after its end, within the test's deadline
            os.close(worker)
        return code
