"""A real rendezvous, a place whose starts a test may count and hit, and tests of jobs with these."""

import json
import os
import pathlib
import random
import signal
import subprocess
import tempfile

import jobs_elsewhere as jobs
from cases import OwnTemp
from fixtures import DEADLINE, free_port, skip

from nearpath import dataflow as flow


def program(name):
    found = pathlib.Path(os.environ.get("NEARPATH_TEST_PROGRAMS", ""), name)
    if not found.is_file():
        skip(f"needs the program {name} in the folder that NEARPATH_TEST_PROGRAMS names: cargo build -p nearpath-cli")
    return str(found)


class Rendezvous:
    """`nearpath rendezvous` on ports of its own, with its key in that folder."""

    def __init__(self, folder):
        self.key, self.process = str(folder / "rendezvous.key"), None
        self.listen, self.observe = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port(2)}"
        self.start()

    def start(self):
        """Where it was before, the second time."""
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
    """Processes that a test counts. `before`: what a worker's start is replaced by, the first time."""

    def __init__(self, before=None, **how):
        super().__init__(**how)
        self.starts, self.before = [], dict(before or {})

    def start(self, worker, orders):
        self._command = self.before.pop(worker, ())
        started = super().start(worker, orders)
        self.starts.append((worker, started))
        return started

    def count(self, worker):
        return sum(name == worker for name, _ in self.starts)

    def kill(self, worker, number=signal.SIGKILL):
        """The one that was started last."""
        process = [started for name, started in self.starts if name == worker][-1]
        if process.ended() is None:
            os.kill(process.pid, number)

    def running_workers(self):
        return [worker for worker, started in self.starts if started.ended() is None]


class Elsewhere(OwnTemp):
    """Jobs whose workers are processes of their own that meet at a rendezvous."""

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
        """Processes, and folders of jobs and of workers."""
        return self.place.running_workers(), self.left()

    def run_job(self, job, store=True, **how):
        how = {"on": self.place, "rendezvous": self.rendezvous.url, "key": self.rendezvous.key, "patience": 20.0, **how}
        if store:
            how.setdefault("checkpoints", str(self.folder / "checkpoints"))
        done = flow.run(job, **how)
        self.assertEqual(self.place.running_workers(), [])
        return done

    def summing(self, count, keys, hits=(), stage="map", pause=0.0005, store=True, **how):
        """A job that goes on for a while, and is exact."""
        arguments = {"count": count, "keys": keys, "folder": str(self.folder), "pause": pause, "hits": hits, "stage": stage}
        job = self.run_job(jobs.summing, store, arguments=arguments, **{"every": 0.3, **how})
        self.assertEqual(dict(job.results), jobs.sums(count, keys))
        self.assertEqual(len(job.results), keys)
        return job

    def run_with_random_deaths(self, every, **how):
        """Whoever dies, twice in a job: stage, items and seconds between checkpoints (one of `every`) are drawn."""
        for seed in range(4):
            with self.subTest(seed=seed):
                draw = random.Random(seed)
                stage = draw.choice(["source", "map", "reduce"])
                hits = [[draw.randrange(3000), signal.SIGKILL] for _ in range(2)]
                self.folder = self.new_folder()
                job = self.summing(3000, 10, hits=hits, stage=stage, every=draw.choice(every), **how)
                self.assertGreaterEqual(len(job.report.restarts), 1)
