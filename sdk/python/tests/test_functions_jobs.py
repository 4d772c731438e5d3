"""Whole jobs on functions of a real `nearpath up`, with a real rendezvous. Longer ones: slow_functions_jobs.py."""

import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest

from cases import DeadlineCase
from rendezvous_fixture import Rendezvous
from fixtures import DEADLINE
from nearpath_up import NearpathUp

from nearpath import dataflow as flow

sys.path.insert(0, str(pathlib.Path(__file__).parent / "functions"))

import sums  # noqa: E402

COMMAND = "python3 -m nearpath.dataflow serve sums"


class FunctionJobCase(DeadlineCase):
    options, seconds = (), 2 * DEADLINE

    @classmethod
    def setUpClass(cls):
        cls.up = NearpathUp(*cls.options)
        cls.addClassCleanup(cls.up.stop)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.rendezvous = Rendezvous(cls.folder)
        cls.addClassCleanup(cls.rendezvous.stop)
        port = cls.rendezvous.url.rpartition(":")[2]
        cls.up.deploy(
            "sums",
            cls.up.handler(),
            COMMAND,
            ready=2,
            envVars={"mode": "http", "upstream_url": "http://127.0.0.1:5000"},
            labels={"com.openfaas.scale.min": "2"},
            annotations={
                "nearpath.io/max-inflight": "4",
                "nearpath.io/queue-timeout": "1s",
                "nearpath.io/egress": f"host.nearpath.internal:{port} max=1000 warm=0",
            },
        )

    def run_job(self, place=None, arguments=None, **options):
        place = place or self.place()
        return flow.run(sums.job, on=place, arguments=arguments, rendezvous=self.rendezvous.url, key=self.rendezvous.key, **options)

    def place(self, **options):
        return flow.Functions(self.up.url, "sums", auth=("admin", self.up.password), **options)

    def run_and_kill(self, when, then=lambda: None, **options):
        """Runs a job and kills one of its two instances."""
        killer = threading.Thread(target=self.kill_one, args=(when, then))
        killer.start()
        try:
            return self.run_job(**options)
        finally:
            killer.join()

    def gate(self):
        """Makes a file on which the source waits."""
        gate = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "gate")
        gate.touch()
        return str(gate)

    def kill_one(self, when, then):
        self.up.wait_until(when, "it is time to kill an instance")
        os.kill(self.servers()[0], signal.SIGKILL)
        then()

    def servers(self):
        """Returns the processes that serve workers, one per instance."""
        command = COMMAND.removeprefix("python3").encode().replace(b" ", b"\0") + b"\0"
        processes = pathlib.Path("/proc").glob("[0-9]*/cmdline")
        return [int(path.parent.name) for path in processes if self.read(path).endswith(command) and self.is_ours(path.parent)]

    def is_ours(self, process):
        """Returns whether a process descends from this test's nearpath."""
        pid = int(process.name)
        while pid > 1 and pid != self.up.process.pid:
            fields = self.read(process.with_name(str(pid)) / "stat").rpartition(b")")[2].split()
            pid = int(fields[1]) if fields else 0
        return pid == self.up.process.pid

    def read(self, path):
        """Reads a file; b"" if its process has ended."""
        try:
            return path.read_bytes()
        except OSError:
            return b""


class SandboxedJobTests(FunctionJobCase):
    """Instances that reach only the rendezvous and accept no connections."""

    def test_a_job_on_functions_gives_exact_sums(self):
        job = self.run_job()
        self.assertEqual(dict(job.results), sums.expected())
        self.assertEqual(job.report.restarts, [])
        self.assertEqual(len(self.served()), 2)
        self.assertIn("relay", job.report.paths)

    def served(self):
        """Returns the instances that have run workers."""
        lines = [line for line in self.up.log_lines("sums") if " of job-" in line["text"]]
        return {line["instance"] for line in lines}

    def test_a_killed_instance_leaves_the_sums_exact(self):
        gate = self.gate()
        reached = pathlib.Path(f"{gate}.reached")
        job = self.run_and_kill(reached.exists, reached.unlink, arguments={"gate": gate})
        self.assertEqual(dict(job.results), sums.expected())
        self.assertEqual(len(job.results), 50)
        self.assertGreaterEqual(len(job.report.restarts), 1)

    def test_a_job_without_enough_instances_fails_with_the_reason(self):
        with self.assertRaisesRegex(flow.JobFailed, "no capacity within 1 s and .* tries; the last: (429|503)"):
            self.run_job(self.place(start_timeout=1), {"workers": 6, "gate": self.gate()}, retries=0)


if __name__ == "__main__":
    unittest.main()
