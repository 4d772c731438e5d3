"""Whole jobs on Lambda's stand-in, behind a real rendezvous: what they make is exact, whatever happens to environments. `make
test-jobs` runs these."""

import os
import signal
import sys
import threading
import unittest

from store_jobs import LambdaStoreJobs
from lambdas import DispatchSocket, until
from fixtures import DEADLINE
from test_dataflow_lambda_jobs import Jobs, sums

from nearpath import dataflow as flow


class Whole(Jobs):
    def test_an_environment_that_is_killed_is_replaced_and_the_result_exact(self):
        self.lambdas.create("killed", self.zip, timeout=50)
        door = DispatchSocket()
        self.addCleanup(door.socket.close)
        threading.Thread(target=self.kill_once, args=(door,), daemon=True).start()
        job = self.run_job("killed", "held", arguments={"door": door.port})
        self.assertEqual(dict(job.results), sums())
        self.assertEqual(len(job.report.restarts), 1, job.report)

    def kill_once(self, door):
        """In mid-stream; then nothing holds the job any more."""
        line = door.come()
        os.kill(self.busy("killed")[0]["pid"], signal.SIGKILL)
        line.close()
        while True:
            door.go(door.come())

    def test_a_module_that_was_not_packed_is_told(self):
        self.lambdas.create("forgotten", self.zip, timeout=50)
        sys.modules.pop("forgotten", None)
        (self.folder / "forgotten.py").write_text((self.folder / "wordcount.py").read_text())
        with self.assertRaisesRegex(flow.JobFailed, "only wordcount, held may be run here, not 'forgotten'"):
            self.run_job("forgotten", "forgotten")


class Long(LambdaStoreJobs, Jobs):
    def test_a_job_goes_on_when_the_time_of_its_functions_is_up(self):
        signal.alarm(5 * DEADLINE)
        self.lambdas.create("long", self.zip, timeout=24)
        job = self.run_job("long", "held", "long", arguments={"count": 5000}, checkpoints=self.kept("long"), every=1.0, retries=20)
        self.assertEqual(dict(job.results), sums(5000))
        self.assertGreaterEqual(len(job.report.turn_overs), 1)
        until(lambda: not self.busy("long"))


if __name__ == "__main__":
    unittest.main()
