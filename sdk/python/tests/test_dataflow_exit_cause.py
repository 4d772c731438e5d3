"""The cause of a killed worker's end: the kernel's, for lack of memory, or unknown."""

import contextlib
import os
import pathlib
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from cases import HERE, DeadlineCase
from fixtures import skip

from nearpath.dataflow._exit_cause import CGROUPS, PERHAPS_MEMORY, OutOfMemoryKills
from nearpath.dataflow._local import LocalWorker
from nearpath.dataflow._pipe import Pipe
from nearpath.dataflow._process_state import StackFile
from nearpath.dataflow._start_methods import LocalProcess


class EndedByKill(LocalProcess):
    """A process that runs until it is killed."""

    pid, code = 7, None

    def __init__(self):
        self.sentinel = os.eventfd(0)

    def exit_code(self, wait=False):
        return self.code

    def kill(self):
        self.code = -signal.SIGKILL

    def close(self):
        os.close(self.sentinel)


class ExitCauseTests(unittest.TestCase):
    """Reads files like those of the kernel."""

    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.kills = OutOfMemoryKills(self.folder / "proc", self.folder / "cgroups")

    def write(self, path, text):
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def test_each_kill_that_cgroup_v2_counts_explains_one_end(self):
        self.write("proc/7/cgroup", "0::/job/inner\n")
        self.write("cgroups/job/memory.max", f"{512 << 20}\n")
        self.write("cgroups/job/inner/memory.max", "max\n")
        self.write("cgroups/job/inner/memory.events", "oom 1\noom_kill 4\n")
        group = self.kills.begin(7)
        self.assertEqual(self.kills.describe_exit(-9, group), PERHAPS_MEMORY)
        self.write("cgroups/job/inner/memory.events", "oom 3\noom_kill 5\n")
        self.assertEqual(self.kills.describe_exit(-11, group), "signal 11")
        self.assertRegex(self.kills.describe_exit(-9, group), "^killed by the kernel: the memory limit of 512 MiB was reached .*/memory.events")
        self.assertEqual(self.kills.describe_exit(-9, group), PERHAPS_MEMORY)

    def test_cgroup_v1_counts_kills_in_its_hierarchy_of_memory(self):
        self.write("proc/7/cgroup", "5:cpu,cpuacct:/\n4:memory:/job\n0::/\n")
        self.write("cgroups/memory/job/memory.limit_in_bytes", f"{64 << 20}\n")
        self.write("cgroups/memory/job/memory.oom_control", "under_oom 0\noom_kill 0\n")
        group = self.kills.begin(7)
        self.write("cgroups/memory/job/memory.oom_control", "under_oom 0\noom_kill 1\n")
        self.assertIn("the memory limit of 64 MiB was reached", self.kills.describe_exit(-9, group))

    def test_a_kill_without_a_limit_names_the_machine(self):
        self.write("proc/7/cgroup", "0::/job\n")
        self.write("cgroups/job/memory.events", "oom_kill 0\n")
        group = self.kills.begin(7)
        self.write("cgroups/job/memory.events", "oom_kill 1\n")
        self.assertIn("the machine had no memory left", self.kills.describe_exit(-9, group))

    def worker(self, name, selector, stacks):
        ours, theirs = socket.socketpair()
        self.addCleanup(theirs.close)
        process = EndedByKill()
        return process, LocalWorker(name, process, Pipe(ours), selector, stacks, self.kills)

    def test_a_worker_that_the_job_stops_does_not_take_the_kill_of_another(self):
        self.write("proc/7/cgroup", "0::/job\n")
        self.write("cgroups/job/memory.events", "oom_kill 0\n")
        stacks = StackFile()
        self.addCleanup(stacks.close)
        with selectors.DefaultSelector() as selector:
            _, stopped = self.worker("map.0", selector, stacks)
            process, killed = self.worker("map.1", selector, stacks)
            self.write("cgroups/job/memory.events", "oom_kill 1\n")
            process.kill()
            stopped.stop()
            self.assertEqual(stopped.ended(), "stopped by its job")
            self.assertIn("killed by the kernel", killed.ended())
            killed.stop()

    def test_an_unknown_cgroup_explains_nothing(self):
        self.assertIsNone(self.kills.begin(7))
        self.assertEqual(self.kills.describe_exit(-9, None), PERHAPS_MEMORY)
        self.assertEqual((self.kills.describe_exit(0, None), self.kills.describe_exit(3, None)), ("", "exit code 3"))


class MemoryLimitTests(DeadlineCase):
    """Runs a job in a cgroup of its own, in which a worker takes too much memory."""

    PROGRAM = """
        import os, sys
        open(os.path.join(sys.argv[1], "cgroup.procs"), "w").write(str(os.getpid()))
        from nearpath import dataflow as flow

        def take_memory(item):
            open("/proc/self/oom_score_adj", "w").write("1000")  # this process, not the job's
            return len(bytearray(os.urandom(1 << 20)) * 1000)

        try:
            flow.run(flow.source(lambda number, of: [1]) >> flow.map(take_memory) >> flow.collect(), retries=0)
        except flow.JobFailed as failed:
            print(failed)
    """

    def setUp(self):
        super().setUp()
        is_v1 = (CGROUPS / "memory").is_dir()
        self.group = (CGROUPS / "memory" if is_v1 else CGROUPS) / f"nearpath-test-{os.getpid()}"
        limits = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes") if is_v1 else ("memory.max", "memory.swap.max")
        try:
            self.group.mkdir()
            self.addCleanup(self.remove_group)
            (self.group / limits[0]).write_text(str(256 << 20))
            with contextlib.suppress(FileNotFoundError):  # without an account of swap
                (self.group / limits[1]).write_text(str(256 << 20) if is_v1 else "0")
        except OSError as error:
            skip(f"needs a cgroup with a memory limit, as root: {error}")

    def remove_group(self):
        """Removes the cgroup when the kernel no longer counts its last process."""
        deadline = time.monotonic() + 30.0
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                return self.group.rmdir()
            time.sleep(0.01)
        self.group.rmdir()  # its error names the cause

    def test_a_worker_beyond_the_memory_limit_is_reported_with_the_limit(self):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]))
        command = [sys.executable, "-c", textwrap.dedent(self.PROGRAM), str(self.group)]
        job = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertRegex(job.stdout, r"map\.0 died \(killed by the kernel: the memory limit of 256 MiB was reached", job.stderr)


if __name__ == "__main__":
    unittest.main()
