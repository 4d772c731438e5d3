"""Whole jobs whose workers are functions of a real `nearpath up`: from a checkpoint on, and longer than a request. `make test-jobs`
runs these."""

import os
import unittest

from test_functions_jobs import Jobs, sums

from nearpath import dataflow as flow


class Unsandboxed(Jobs):
    """Functions as processes of this machine: they share a folder for checkpoints."""

    options = ("--no-sandbox",)

    def test_it_goes_on_from_a_checkpoint(self):
        checkpoints = self.folder / "checkpoints"
        is_there = lambda: list(checkpoints.rglob("complete"))
        slow = self.gate()
        until_killed = {"pause": 0.01, "slow": slow}
        job = self.run_and_kill(is_there, lambda: os.unlink(slow), arguments=until_killed, checkpoints=str(checkpoints), every=0.2)
        self.assertEqual(dict(job.results), sums.expected())
        self.assertEqual(len(job.results), 50)
        self.assertGreaterEqual(len(job.report.restarts), 1)
        self.assertGreaterEqual(job.report.checkpoints, 1)
        self.assertLess(job.report.stages["numbers"].items, 4000)  # those before the checkpoint are left out

    def test_it_takes_longer_than_a_request_may(self):
        """nearpath ends requests after eighteen seconds, and would find nobody to end."""
        self.up.deploy("brief", self.up.handler(), "python3 -m nearpath.dataflow", annotations={"nearpath.io/total-timeout": "18s"})
        place = flow.Functions(self.up.url, "brief", auth=("admin", self.up.password))
        self.assertEqual(place.limit, 18)
        arguments = {"count": 16_000, "pause": 0.001, "workers": 2}
        job = self.run_job(place, arguments, checkpoints=str(self.folder / "turns"), every=1.0)
        self.assertEqual(dict(job.results), sums.expected(16_000))
        self.assertEqual(job.report.restarts, [])
        self.assertGreaterEqual(len(job.report.turn_overs), 1)


if __name__ == "__main__":
    unittest.main()
