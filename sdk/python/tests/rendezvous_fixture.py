"""A real rendezvous, a place that records its starts, and a base class of tests with both."""

import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile

import jobs_remote as jobs
from cases import TemporaryFolderCase
from fixtures import DEADLINE, free_port, skip

from nearpath import dataflow as flow


def program(name):
    found = pathlib.Path(os.environ.get("NEARPATH_TEST_PROGRAMS", ""), name)
    if not found.is_file():
        skip(f"needs the program {name} in the folder that NEARPATH_TEST_PROGRAMS names: cargo build -p nearpath-cli")
    return str(found)


class Rendezvous:
    """Runs `nearpath rendezvous` on its own ports, with its key in `folder`."""

    def __init__(self, folder):
        self.key, self.process = str(folder / "rendezvous.key"), None
        self.listen, self.observe = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port(2)}"
        self.start()

    def start(self):
        """Starts the process, each time at the same address."""
        command = [program("nearpath"), "rendezvous", "--listen", self.listen, "--observe", self.observe]
        command += ["--admin-listen", "127.0.0.1:0", "--key", self.key, "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.url = json.loads(self.process.stdout.readline())["rendezvous"]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def stop(self):
        if self.process.poll() is None:
            self.kill()


class CountedProcesses(flow.Processes):
    """Records started processes. `before` maps workers to commands that replace their first start."""

    def __init__(self, before=None, **options):
        super().__init__(**options)
        self.starts, self.before = [], dict(before or {})

    def start(self, worker, orders):
        self._command = self.before.pop(worker, ())
        started = super().start(worker, orders)
        self.starts.append((worker, started))
        return started

    def count(self, worker):
        return sum(name == worker for name, _ in self.starts)

    def kill(self, worker, number=signal.SIGKILL):
        """Sends a signal to the last start of a worker."""
        process = [started for name, started in self.starts if name == worker][-1]
        if process.ended() is None:
            os.kill(process.pid, number)

    def running_workers(self):
        return [worker for worker, started in self.starts if started.ended() is None]


class RemoteJobCase(TemporaryFolderCase):
    """Runs jobs with workers in their own processes, connected through a rendezvous."""

    seconds = 2 * DEADLINE

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.keys = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.rendezvous = Rendezvous(cls.keys)
        cls.addClassCleanup(cls.rendezvous.stop)

    def setUp(self):
        super().setUp()
        self.place = CountedProcesses()

    def running_workers(self):
        """Returns running workers, and folders of jobs and workers."""
        return self.place.running_workers(), self.remaining_files()

    def run_job(self, job, store=True, **options):
        options = {"on": self.place, "rendezvous": self.rendezvous.url, "key": self.rendezvous.key, "contact_timeout": 20.0, **options}
        if store:
            options.setdefault("checkpoints", str(self.folder / "checkpoints"))
        done = flow.run(job, **options)
        self.assertEqual(self.place.running_workers(), [])
        return done

    def run_summing(self, count, keys, signals=(), stage="map", pause=0.0005, store=True, **options):
        """Runs a job for a while and checks its sums."""
        arguments = {"count": count, "keys": keys, "folder": str(self.folder), "pause": pause, "signals": signals, "stage": stage}
        job = self.run_job(jobs.summing, store, arguments=arguments, **{"checkpoint_interval": 0.3, **options})
        self.assertEqual(dict(job.results), jobs.sums(count, keys))
        self.assertEqual(len(job.results), keys)
        return job

    def run_with_random_deaths(self, intervals, **options):
        """Runs jobs with two deaths each. Stage, items and the checkpoint interval are random."""
        for seed in range(4):
            with self.subTest(seed=seed):
                draw = random.Random(seed)
                stage = draw.choice(["source", "map", "reduce"])
                signals = [[draw.randrange(3000), signal.SIGKILL] for _ in range(2)]
                self.folder = self.new_folder()
                job = self.run_summing(3000, 10, signals=signals, stage=stage, checkpoint_interval=draw.choice(intervals), **options)
                self.assertGreaterEqual(len(job.report.restarts), 1)
