"""Jobs with checkpoints in an object store are exact despite deaths of workers, store and leader. `make test-jobs` runs these."""

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

import store_fixture
from cases import HERE
from rendezvous_fixture import RemoteJobCase
from s3_server import FaultyProxy
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import _s3


class LocalStoreFaultTests(store_fixture.LocalStoreCase):
    """Runs forked workers."""

    def test_a_killed_store_causes_no_death(self):
        """Operations are retried, and no worker dies."""
        proxy = FaultyProxy(self.server.endpoint)
        self.addCleanup(proxy.close)

        def restart():
            self.server.kill()
            type(self).server = self.server.restart()

        proxy.fail_next(1, restart, "PUT", "00000002/map.0")
        done = self.run_summing(6000, proxy.endpoint)
        self.assertGreaterEqual(done.report.checkpoints, 2)
        self.assertEqual(done.report.restarts, [])

    @contextlib.contextmanager
    def without_retries(self):
        """Permits one try per request."""
        with unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="1"), unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0):
            yield

    def test_a_long_store_failure_counts_as_a_death(self):
        proxy = FaultyProxy(self.server.endpoint)
        self.addCleanup(proxy.close)
        for word in ("00000002/map.0", "00000002/complete"):  # a worker's state; the leader's manifest
            with self.subTest(word), self.without_retries():
                proxy.fail_next(1, 503, "PUT", word)
                done = self.run_summing(4000, proxy.endpoint)
                self.assertRegex(" ".join(done.report.restarts), f"{word}.* cannot be written, all tries failed")
                self.assertEqual(len(done.report.restarts), 1)

    def test_a_permanent_store_failure_ends_the_job(self):
        proxy = FaultyProxy(self.server.endpoint)
        self.addCleanup(proxy.close)
        proxy.fail_next(1000, 503, "PUT")
        with self.without_retries(), self.assertRaisesRegex(flow.JobFailed, "gave up after 1 .*all tries failed"):
            self.run_summing(4000, proxy.endpoint, retries=1)

    def test_a_killed_leaders_next_run_resumes(self):
        """The next run resumes from the last checkpoint."""
        program = textwrap.dedent("""
            import json, sys, jobs_remote
            from nearpath import dataflow as flow
            count, folder, url = json.loads(sys.argv[1])
            flow.run(jobs_remote.summing(count, 10, folder, 0.0005), folder=folder, checkpoints=url, checkpoint_interval=0.2)
        """)
        count, draw = 12_000, random.Random(7)
        arguments = json.dumps([count, str(self.folder), self.url()])
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]))
        for kills in range(1, 4):
            leader = subprocess.Popen([sys.executable, "-c", program, arguments], env=environment)
            self.wait_for_checkpoint(kills, is_cancelled=lambda: leader.poll() is not None)
            self.assertIsNone(leader.poll(), "it ended by itself")
            time.sleep(draw.uniform(0, 0.2))  # at a random point of the next checkpoint
            leader.kill()
            leader.wait()
        self.assertGreaterEqual(self.last_checkpoint(), 3)
        done = self.run_summing(count, folder=str(self.folder))
        self.assertLess(done.report.stages["map"].items, count)


class RemoteStoreFaultTests(store_fixture.StoreJobCase, RemoteJobCase):
    """Worker processes share only the store."""

    def test_random_deaths_leave_the_sums_exact(self):
        self.run_with_random_deaths([0.1, 0.3], checkpoints=self.url())
        self.assertEqual(self.objects(), [], "finished jobs leave no objects")

    def test_random_kills_leave_the_sums_exact(self):
        draw, stop = random.Random(5), threading.Event()

        def kill():
            for _ in range(3):
                self.wait_for_checkpoint(self.last_checkpoint() + 1, is_cancelled=stop.is_set)
                self.place.kill(draw.choice(["source.0", "source.1", "map.0", "map.2", "reduce-by-key.1"]))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            job = self.run_summing(8000, 10, retries=10, checkpoints=self.url())
        finally:
            stop.set()
            killer.join()
        self.assertGreater(job.report.checkpoints, 1)

    def test_a_late_save_of_a_replaced_worker_does_not_count(self):
        """Stops the reducer during its save.

        The save ends after its successor has completed the same checkpoint, and before the job returns to it.
        """
        proxy = FaultyProxy(self.server.endpoint)
        self.addCleanup(proxy.close)
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

        proxy.rule, proxy.after = rule, after
        job = self.run_summing(6000, 10, checkpoints=self.url(proxy.endpoint), silence_timeout=2.0)
        self.assertEqual(len(there), 2, "its state and its successor's")
        first, *others = job.report.restarts
        self.assertIn("reduce-by-key.1 died (silent", first)
        # On a busy machine another worker may be silent for two seconds, too.
        self.assertTrue(any("map.1 died (killed by SIGKILL" in why for why in others), others)


if __name__ == "__main__":
    unittest.main()
