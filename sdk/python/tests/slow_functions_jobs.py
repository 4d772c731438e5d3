"""Jobs with workers in functions of a real `nearpath up`: a resumed job, and a job longer than a request.

`make test-jobs` runs these."""

import os
import unittest

from test_functions_jobs import FunctionJobCase, sums

from nearpath import dataflow as flow


class UnsandboxedJobTests(FunctionJobCase):
    """Functions as local processes, which share a folder for checkpoints."""

    options = ("--no-sandbox",)

    def test_a_job_resumes_from_a_checkpoint(self):
        checkpoints = self.folder / "checkpoints"
        has_checkpoint = lambda: list(checkpoints.rglob("complete"))
        slow_file = self.gate()  # the source pauses while this file exists
        until_killed = {"pause": 0.01, "slow": slow_file}
        job = self.run_and_kill(has_checkpoint, lambda: os.unlink(slow_file), arguments=until_killed, checkpoints=str(checkpoints), checkpoint_interval=0.2)
        self.assertEqual(dict(job.results), sums.expected())
        self.assertEqual(len(job.results), 50)
        self.assertGreaterEqual(len(job.report.restarts), 1)
        self.assertGreaterEqual(job.report.checkpoints, 1)
        self.assertLess(job.report.stages["numbers"].items, 4000)  # items before the checkpoint are skipped

    def test_a_job_outlasts_the_timeout_of_its_requests(self):
        """The function's requests end after 18 s. The job renews its workers before that."""
        self.up.deploy("short-timeout", self.up.handler(), "python3 -m nearpath.dataflow", annotations={"nearpath.io/total-timeout": "18s"})
        place = flow.Functions(self.up.url, "short-timeout", auth=("admin", self.up.password))
        self.assertEqual(place.limit, 18)
        arguments = {"count": 16_000, "pause": 0.001, "workers": 2}
        job = self.run_job(place, arguments, checkpoints=str(self.folder / "renewal-checkpoints"), checkpoint_interval=1.0)
        self.assertEqual(dict(job.results), sums.expected(16_000))
        self.assertEqual(job.report.restarts, [])
        self.assertGreaterEqual(len(job.report.renewals), 1)


if __name__ == "__main__":
    unittest.main()
