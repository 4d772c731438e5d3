"""Jobs that scale out at places, with a store and with killed processes."""

import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import threading
import unittest

from store_fixture import LambdaStoreCase
from rendezvous_fixture import Rendezvous
from fixtures import DEADLINE
from nearpath_up import NearpathUp

from nearpath import dataflow as flow

sys.path.insert(0, str(pathlib.Path(__file__).parent / "functions"))

import scale_out_job  # noqa: E402

COUNT, KEYS, PAUSE = 2400, 20, 0.005
COMMAND = "python3 -m nearpath.dataflow serve scale_out_job"


class ScaleOutKillCase(unittest.TestCase):
    """`checkpoints()` returns the numbers of complete checkpoints, `kill()` ends some workers."""

    def run_job(self, on, rendezvous, checkpoints):
        """Runs a job with one kill, after a checkpoint that precedes requests for workers."""
        is_over = threading.Event()
        killer = threading.Thread(target=self.kill_after, args=(2, is_over))
        killer.start()
        try:
            options = {"rendezvous": rendezvous.url, "key": rendezvous.key, "checkpoints": checkpoints, "checkpoint_interval": 0.5}
            return flow.run(scale_out_job.job, on=on, arguments={"count": COUNT, "keys": KEYS, "pause": PAUSE}, **options)
        finally:
            is_over.set()
            killer.join()

    def kill_after(self, number, is_over):
        while max(self.checkpoints(), default=0) < number and not is_over.wait(0.05):
            pass
        if not is_over.is_set():
            self.kill()

    def check(self, job):
        self.assertEqual(dict(job.results), scale_out_job.expected(COUNT, KEYS))
        self.assertEqual(len(job.results), KEYS)
        self.assertEqual(job.report.stages["work"].workers, 4, "max_workers")
        self.assertGreaterEqual(len(job.report.restarts), 1)
        self.assertGreaterEqual(job.report.checkpoints, 2)


class FunctionScaleOutTests(ScaleOutKillCase):
    def setUp(self):
        signal.alarm(3 * DEADLINE)
        self.addCleanup(signal.alarm, 0)
        self.up = NearpathUp("--no-sandbox")  # instances share a folder
        self.addCleanup(self.up.stop)
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.rendezvous = Rendezvous(self.folder)
        self.addCleanup(self.rendezvous.stop)
        spec = {"labels": {"com.openfaas.scale.min": "2"}, "annotations": {"nearpath.io/max-inflight": "6"}}
        variables = {"mode": "http", "upstream_url": "http://127.0.0.1:5000"}
        self.up.deploy("scale-out", self.up.handler(), COMMAND, ready=2, envVars=variables, **spec)

    def checkpoints(self):
        return [int(path.parent.name) for path in self.folder.glob("checkpoints/**/complete")]

    def kill(self):
        """Kills a worker's process of this test's instances."""
        pattern = re.compile(rb"nearpath\.dataflow\.function\0\d+\0$")
        workers = []
        for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if pattern.search(path.read_bytes()) and str(self.up.folder) in os.readlink(path.parent / "cwd"):
                    workers.append(int(path.parent.name))
            except OSError:  # it has ended meanwhile
                continue
        os.kill(random.Random(1).choice(workers), signal.SIGKILL)

    def test_a_killed_worker_leaves_the_sums_exact(self):
        place = flow.Functions(self.up.url, "scale-out", auth=("admin", self.up.password))
        self.check(self.run_job(place, self.rendezvous, str(self.folder / "checkpoints")))


class LambdaScaleOutTests(LambdaStoreCase, ScaleOutKillCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.rendezvous = Rendezvous(cls.folder)
        cls.addClassCleanup(cls.rendezvous.stop)

    def checkpoints(self):
        return [int(name.split("/")[-2]) for name in self.store.objects() if name.endswith("/complete")]

    def kill(self):
        busy = [environment["pid"] for environment in self.lambdas.environments("scale-out") if environment["busy"]]
        os.kill(random.Random(1).choice(busy), signal.SIGKILL)

    def test_a_killed_environment_leaves_the_sums_exact(self):
        from nearpath.dataflow.aws import _package

        signal.alarm(3 * DEADLINE)
        zipped = _package.make(self.folder / "scale_out_job.zip", [pathlib.Path(scale_out_job.__file__)], _package.Target()).path
        self.lambdas.create("scale-out", zipped, timeout=60)
        self.check(self.run_job(self.place("scale-out"), self.rendezvous, self.checkpoint_url("scale-out")))


if __name__ == "__main__":
    unittest.main()
