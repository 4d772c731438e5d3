"""Whole jobs on the Lambda double with a real rendezvous are exact despite faults of environments. `make test-jobs` runs these."""

import os
import signal
import sys
import threading
import unittest

from store_fixture import LambdaStoreCase
from lambda_fixture import HoldServer, wait_until
from fixtures import DEADLINE
from test_dataflow_lambda_jobs import LambdaJobCase, sums

from nearpath import dataflow as flow


class LambdaJobFaultTests(LambdaJobCase):
    def test_a_killed_environment_is_replaced_and_the_result_exact(self):
        self.lambdas.create("killed", self.zip, timeout=50)
        hold_server = HoldServer()
        self.addCleanup(hold_server.socket.close)
        threading.Thread(target=self.kill_once, args=(hold_server,), daemon=True).start()
        job = self.run_job("killed", "held", arguments={"port": hold_server.port})
        self.assertEqual(dict(job.results), sums())
        self.assertEqual(len(job.report.restarts), 1, job.report)

    def kill_once(self, hold_server):
        """Kills an environment during the job, then releases all waiting functions."""
        connection = hold_server.accept()
        os.kill(self.busy("killed")[0]["pid"], signal.SIGKILL)
        connection.close()
        while True:
            hold_server.release(hold_server.accept())

    def test_an_unpacked_module_is_reported(self):
        self.lambdas.create("forgotten", self.zip, timeout=50)
        sys.modules.pop("forgotten", None)
        (self.folder / "forgotten.py").write_text((self.folder / "wordcount.py").read_text())
        with self.assertRaisesRegex(flow.JobFailed, "only wordcount, held may be run here, not 'forgotten'"):
            self.run_job("forgotten", "forgotten")


class LongLambdaJobTests(LambdaStoreCase, LambdaJobCase):
    def test_a_job_outlasts_the_timeout_of_its_functions(self):
        signal.alarm(5 * DEADLINE)
        self.lambdas.create("long", self.zip, timeout=24)
        job = self.run_job("long", "held", "long", arguments={"count": 5000}, checkpoints=self.checkpoint_url("long"), checkpoint_interval=1.0, retries=20)
        self.assertEqual(dict(job.results), sums(5000))
        self.assertGreaterEqual(len(job.report.renewals), 1)
        wait_until(lambda: not self.busy("long"))


if __name__ == "__main__":
    unittest.main()
