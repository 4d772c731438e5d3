"""What tests of jobs have in common: an alarm, temporary files of their own, and jobs that are ended from outside."""

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


def too_late(*_):
    """Raises, so that what a test has started is ended."""
    raise TimeoutError("the test takes too long")


class Alarm(unittest.TestCase):
    """A test that hangs is a failure."""

    seconds = DEADLINE

    def setUp(self):
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, too_late))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(self.seconds)


class OwnTemp(Alarm):
    """What a job and its workers leave in the folder for temporary files is seen, and nobody else's is."""

    def setUp(self):
        super().setUp()
        self.folder = self.new_folder()
        self.temp = self.folder / "temp"
        self.temp.mkdir()
        self.enterContext(unittest.mock.patch.dict(os.environ, TMPDIR=str(self.temp)))
        self.enterContext(unittest.mock.patch.object(tempfile, "tempdir", str(self.temp)))

    def new_folder(self):
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def left(self):
        return list(self.temp.iterdir())


class EndedBySignal(OwnTemp):
    """Jobs in processes of their own. Their workers write down their numbers: `jobs_elsewhere.forever`."""

    def begin(self, program, *words):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]))
        command = [sys.executable, "-c", textwrap.dedent(program), *map(str, words)]
        job = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=environment)
        self.addCleanup(job.wait)
        self.addCleanup(job.kill)
        return job

    def ended_by(self, number, program, *words):
        """How a job ends that is sent this signal while its five workers work, once all of these have ended, too."""
        pids = self.folder / "pids"
        pids.mkdir()
        job = self.begin(program, pids, *words)
        while len(files := list(pids.iterdir())) < 5:
            self.assertIsNone(job.poll())
            time.sleep(0.01)
        workers = [os.pidfd_open(int(file.name.removeprefix("pid-"))) for file in files]
        job.send_signal(number)
        code = job.wait()
        for worker in workers:
            select.select([worker], [], [])  # readable once it has ended; if it never does, the alarm
            os.close(worker)
        return code
