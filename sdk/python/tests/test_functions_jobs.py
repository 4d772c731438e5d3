"""Whole jobs whose workers are functions of a real `nearpath up`, behind a real rendezvous."""

import os
import pathlib
import signal
import sys
import tempfile
import threading
import unittest

from meeting import Rendezvous
from surroundings import DEADLINE
from up import Up

from nearpath import dataflow as flow

sys.path.insert(0, str(pathlib.Path(__file__).parent / "functions"))

import sums  # noqa: E402

COMMAND = "python3 -m nearpath.dataflow serve sums"


class Jobs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.up = Up()
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
            annotations={"nearpath.io/max-inflight": "4", "nearpath.io/egress": f"host.nearpath.internal:{port} max=1000 warm=0"},
        )

    def setUp(self):
        signal.alarm(2 * DEADLINE)
        self.addCleanup(signal.alarm, 0)

    def run_job(self, **arguments):
        place = flow.Functions(self.up.url, "sums", auth=("admin", self.up.password))
        meeting = {"rendezvous": self.rendezvous.url, "key": self.rendezvous.key}
        return flow.run(sums.job, on=place, arguments=arguments, **meeting)

    def test_sums(self):
        job = self.run_job()
        self.assertEqual(dict(job.results), sums.expected())
        self.assertEqual(job.report.restarts, [])
        self.assertEqual(len(self.served()), 2)
        self.assertIn("relay", job.report.paths)  # instances are reached by nobody

    def served(self):
        """Instances that have had workers."""
        lines = [line for line in self.up.logged("sums") if " of job-" in line["text"]]
        return {line["instance"] for line in lines}

    def test_an_instance_is_killed_in_the_middle(self):
        gate = self.folder / "gate"
        gate.touch()
        reached = gate.with_name("gate.reached")
        killer = threading.Thread(target=self.kill_one, args=(reached,))
        killer.start()
        job = self.run_job(gate=str(gate))
        killer.join()
        self.assertEqual(dict(job.results), sums.expected())
        self.assertEqual(len(job.results), 50)
        self.assertGreaterEqual(len(job.report.restarts), 1)

    def kill_one(self, reached):
        self.up.until(reached.exists, "half of the items have left their source")
        servers = self.servers()
        os.kill(servers[0], signal.SIGKILL)
        reached.unlink()

    def servers(self):
        """Processes of this machine that serve workers, one an instance."""
        command = COMMAND.removeprefix("python3").encode().replace(b" ", b"\0") + b"\0"
        processes = pathlib.Path("/proc").glob("[0-9]*/cmdline")
        return [int(path.parent.name) for path in processes if self.read(path).endswith(command) and self.is_ours(path.parent)]

    def is_ours(self, process):
        """Others run tests on this machine, too."""
        pid = int(process.name)
        while pid > 1 and pid != self.up.process.pid:
            fields = self.read(process.with_name(str(pid)) / "stat").rpartition(b")")[2].split()
            pid = int(fields[1]) if fields else 0
        return pid == self.up.process.pid

    def read(self, path):
        """Nothing of a process that has gone."""
        try:
            return path.read_bytes()
        except OSError:
            return b""


if __name__ == "__main__":
    unittest.main()
