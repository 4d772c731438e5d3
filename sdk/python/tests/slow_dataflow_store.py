"""Jobs whose checkpoints are in an object store: exact, whoever dies, the store and the leader included. `make test-jobs` runs these."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest
import unittest.mock

import store_jobs
from cases import HERE
from rendezvous_fixture import Elsewhere
from s3_server import FaultyProxy
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import _s3


class Here(store_jobs.Here):
    """Workers are forked."""

    def test_the_store_is_killed_in_mid_job(self):
        """Who waits for it tries again; nobody dies of it."""
        between = FaultyProxy(self.server.endpoint)
        self.addCleanup(between.close)

        def restart():
            self.server.kill()
            type(self).server = self.server.again()

        between.times(1, restart, "PUT", "00000002/map.0")
        done = self.summing(6000, between.endpoint)
        self.assertGreaterEqual(done.report.checkpoints, 2)
        self.assertEqual(done.report.restarts, [])

    @contextlib.contextmanager
    def without_retries(self):
        """Each request is tried once."""
        with unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="1"), unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0):
            yield

    def test_a_store_that_is_away_for_longer_counts_as_a_death(self):
        between = FaultyProxy(self.server.endpoint)
        self.addCleanup(between.close)
        for word in ("00000002/map.0", "00000002/complete"):  # a worker's state; the leader's list
            with self.subTest(word), self.without_retries():
                between.times(1, 503, "PUT", word)
                done = self.summing(4000, between.endpoint)
                self.assertRegex(" ".join(done.report.restarts), f"{word}.* was to be written, and no good answer came")
                self.assertEqual(len(done.report.restarts), 1)

    def test_a_store_that_stays_away_ends_the_job(self):
        between = FaultyProxy(self.server.endpoint)
        self.addCleanup(between.close)
        between.times(1000, 503, "PUT")
        with self.without_retries(), self.assertRaisesRegex(flow.JobFailed, "gave up after 1 .*no good answer"):
            self.summing(4000, between.endpoint, retries=1)

    def test_a_leader_that_is_killed(self):
        """The next run goes on from the last checkpoint."""
        program = textwrap.dedent("""
            import json, sys, jobs_elsewhere
            from nearpath import dataflow as flow
            count, folder, url = json.loads(sys.argv[1])
            flow.run(jobs_elsewhere.summing(count, 10, folder, 0.0005), folder=folder, checkpoints=url, every=0.2)
        """)
        count, draw = 12_000, random.Random(7)
        arguments = json.dumps([count, str(self.folder), self.url()])
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]))
        for kills in range(1, 4):
            leader = subprocess.Popen([sys.executable, "-c", program, arguments], env=environment)
            self.until(kills, unless=lambda: leader.poll() is not None)
            self.assertIsNone(leader.poll(), "it ended by itself")
            time.sleep(draw.uniform(0, 0.2))  # anywhere in the next one
            leader.kill()
            leader.wait()
        self.assertGreaterEqual(self.completed(), 3)
        done = self.summing(count, folder=str(self.folder))
        self.assertLess(done.report.stages["map"].items, count)


class There(store_jobs.StoreJobs, Elsewhere):
    """Workers are processes of their own, which have only the store in common."""

    def test_whoever_dies_in_several_seeds(self):
        self.run_with_random_deaths([0.1, 0.3], checkpoints=self.url())
        self.assertEqual(self.objects(), [], "jobs that are through leave nothing")

    def test_random_ones_killed_from_outside(self):
        draw, stop = random.Random(5), threading.Event()

        def kill():
            for _ in range(3):
                self.until(self.completed() + 1, unless=stop.is_set)
                self.place.kill(draw.choice(["source.0", "source.1", "map.0", "map.2", "reduce-by-key.1"]))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            job = self.summing(8000, 10, retries=10, checkpoints=self.url())
        finally:
            stop.set()
            killer.join()
        self.assertGreater(job.report.checkpoints, 1)

    def test_a_save_of_one_that_was_taken_for_dead(self):
        """The reducer that has the keys is stopped while its state is on the way. The state comes when its successor has written the same checkpoint, and
        before the job goes back to that."""
        between = FaultyProxy(self.server.endpoint)
        self.addCleanup(between.close)
        completed, came = threading.Event(), threading.Event()
        self.addCleanup(completed.set)
        late, there = [], []

        def hold():
            self.place.kill("reduce-by-key.1", signal.SIGSTOP)
            completed.wait(DEADLINE)

        def rule(method, path):
            if method == "PUT" and "00000002/reduce-by-key.1." in path and not late:
                late.append(path)
                return hold
            return None

        def after(method, path):
            if method == "PUT" and path.endswith("00000002/complete"):
                completed.set()
                came.wait(DEADLINE)
                there.extend(name for name in self.objects() if "00000002/reduce-by-key.1." in name)
                self.place.kill("map.1")
            elif path in late:
                came.set()

        between.rule, between.after = rule, after
        job = self.summing(6000, 10, checkpoints=self.url(between.endpoint), silence=2.0)
        self.assertEqual(len(there), 2, "its state and its successor's")
        first, *others = job.report.restarts
        self.assertIn("reduce-by-key.1 died (silent", first)
        # On a busy machine somebody else may be silent for two seconds, too.
        self.assertTrue(any("map.1 died (signal 9)" in why for why in others), others)


if __name__ == "__main__":
    unittest.main()
