"""Jobs whose workers are processes of their own that meet at a real rendezvous: exact, whoever dies."""

import os
import pathlib
import random
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

import jobs_elsewhere as jobs
import jobs_growing
from meeting import Rendezvous, Watched
from surroundings import DEADLINE

from nearpath import dataflow as flow

HERE = pathlib.Path(__file__).parent


def too_late(number, frame):
    raise TimeoutError("the test takes too long")


class Elsewhere(unittest.TestCase):
    """A job that hangs is a failure."""

    @classmethod
    def setUpClass(cls):
        cls.keys = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.rendezvous = Rendezvous(cls.keys)
        cls.addClassCleanup(cls.rendezvous.stop)

    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, too_late))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(2 * DEADLINE)
        self.folder = self.new_folder()
        self.place = Watched()
        self.temp = self.folder / "temp"
        self.temp.mkdir()
        self.enterContext(unittest.mock.patch.dict(os.environ, TMPDIR=str(self.temp)))
        self.enterContext(unittest.mock.patch.object(tempfile, "tempdir", str(self.temp)))

    def new_folder(self):
        return pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def left_over(self):
        """Processes, and folders of jobs and of workers."""
        return self.place.left_over(), list(self.temp.iterdir())

    def run_job(self, job, store=True, **how):
        how = {"on": self.place, "rendezvous": self.rendezvous.url, "key": self.rendezvous.key, "patience": 20.0, **how}
        if store:
            how.setdefault("checkpoints", str(self.folder / "checkpoints"))
        done = flow.run(job, **how)
        self.assertEqual(self.place.left_over(), [])
        return done

    def summing(self, count, keys, hits=(), stage="map", pause=0.0005, store=True, **how):
        """A job that goes on for a while, and is exact."""
        arguments = {"count": count, "keys": keys, "folder": str(self.folder), "pause": pause, "hits": hits, "stage": stage}
        job = self.run_job(jobs.summing, store, arguments=arguments, **{"every": 0.3, **how})
        self.assertEqual(dict(job.results), jobs.sums(count, keys))
        self.assertEqual(len(job.results), keys)
        return job


class Jobs(Elsewhere):
    def test_reduce_by_key(self):
        job = self.summing(5000, 50, pause=0.0, store=False)
        self.assertEqual(sum(job.report.paths.values()), 18)
        self.assertLessEqual(set(job.report.paths), {"punch", "relay"})
        self.assertEqual((job.report.restarts, len(self.place.starts)), ([], 8))
        self.assertEqual(self.left_over(), ([], []))

    def test_checkpoints_are_made(self):
        job = self.summing(4000, 10)
        self.assertGreater(job.report.checkpoints, 1)

    def test_an_exception_ends_the_job_and_is_told(self):
        with self.assertRaises(flow.JobFailed) as raised:
            self.run_job(jobs.wrong, arguments={"count": 100})
        self.assertEqual(raised.exception.worker, "map.0")
        self.assertIn("LookupError: no such number", str(raised.exception))
        self.assertEqual(self.left_over(), ([], []))

    def test_a_job_that_workers_cannot_make(self):
        here = {"on": self.place, "rendezvous": self.rendezvous.url, "key": self.rendezvous.key}

        def inner():
            return jobs.summing(1, 1)

        for job, told in [(inner, "top level of a module"), (lambda: None, "top level"), (jobs.summing(1, 1), "top level")]:
            with self.assertRaisesRegex(ValueError, told):
                flow.run(job, **here)
        with self.assertRaisesRegex(ValueError, "as JSON"):
            flow.run(jobs.wrong, arguments={"count": {1}}, **here)
        with self.assertRaisesRegex(ValueError, "need a function that makes the job, `rendezvous` and `key`"):
            flow.run(jobs.wrong, on=self.place, arguments={"count": 1})
        with self.assertRaisesRegex(flow.JobFailed, "makes another graph here"):
            flow.run(jobs.different, arguments={"path": str(self.folder)}, **here)
        self.assertEqual(self.place.left_over(), [])

    def test_no_rendezvous(self):
        with self.assertRaisesRegex(ConnectionError, "no rendezvous at ws://127.0.0.1:1 within 0.5 s"):
            self.run_job(jobs.wrong, arguments={"count": 1}, rendezvous="ws://127.0.0.1:1", patience=0.5)
        with self.assertRaisesRegex(ConnectionError, "does not take the ticket: .* answers 401: no ticket, or none of this rendezvous"):
            self.run_job(jobs.wrong, arguments={"count": 1}, key=bytes(32))
        self.assertEqual(self.place.starts, [])


class Deaths(Elsewhere):
    def test_without_a_store_from_the_beginning(self):
        job = self.summing(3000, 10, hits=[[2000, signal.SIGKILL]], store=False)
        self.assertEqual(len(job.report.restarts), 1)
        self.assertIn("died (signal 9)", job.report.restarts[0])
        self.assertEqual(job.report.checkpoints, 0)

    def test_only_the_dead_one_is_started_anew(self):
        """The others go on in their processes."""
        job = self.summing(4000, 10, hits=[[3001, signal.SIGKILL]])
        self.assertEqual(len(job.report.restarts), 1)
        self.assertEqual(len(self.place.starts), 9)
        self.assertGreater(job.report.checkpoints, 0)

    def test_whoever_dies_in_several_seeds(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                draw = random.Random(seed)
                stage = draw.choice(["source", "map", "reduce"])
                hits = [[draw.randrange(3000), signal.SIGKILL] for _ in range(2)]
                self.folder = self.new_folder()
                job = self.summing(3000, 10, hits=hits, stage=stage, every=draw.choice([0.1, 0.3, 1000.0]))
                self.assertGreaterEqual(len(job.report.restarts), 1)

    def test_the_sums_are_wrong_where_a_worker_forgets(self):
        """That these tests can fail."""
        for remembers in (True, False):
            self.folder = self.new_folder()
            arguments = {"count": 2000, "keys": 10, "folder": str(self.folder), "remembers": remembers}
            job = self.run_job(jobs.forgetful, arguments=arguments, every=0.1)
            self.assertEqual(len(job.report.restarts), 1)
            self.assertEqual(dict(job.results) == jobs.sums(2000, 10), remembers)

    def test_random_ones_killed_from_outside(self):
        draw, stop = random.Random(4), threading.Event()

        def kill():
            for _ in range(4):
                if stop.wait(draw.uniform(0.5, 1.0)):
                    return
                self.place.kill(draw.choice(["source.0", "source.1", "map.0", "map.2", "reduce-by-key.1"]))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            self.summing(8000, 10, retries=10)
        finally:
            stop.set()
            killer.join()

    def test_at_the_start(self):
        self.place = Watched(before={"map.1": ["sh", "-c", "exit 7"]})
        job = self.summing(1000, 10, pause=0.0)
        self.assertIn("map.1 died (exit code 7)", job.report.restarts[0])

    def test_a_start_that_comes_to_nothing(self):
        """It runs, and says nothing."""
        self.place = Watched(before={"map.1": ["sh", "-c", "sleep 1000"]})
        job = self.summing(1000, 10, pause=0.0, patience=4.0)
        self.assertIn("map.1 died (no word from it within 4 s)", job.report.restarts[0])

    def test_while_connecting(self):
        job = self.run_job(jobs.dying_early, arguments={"count": 1000, "folder": str(self.folder)})
        self.assertEqual(sorted(job.results), list(range(1000)))
        self.assertEqual(len(job.report.restarts), 1)

    def test_one_that_is_silent(self):
        """Stopped, it holds its streams: only its silence tells."""
        job = self.summing(3000, 10, hits=[[2000, signal.SIGSTOP]], silence=4.0, retries=10)
        self.assertRegex(" ".join(job.report.restarts), r"map\.\d died \(silent for \d+ s\)")

    def test_who_dies_again_and_again_ends_the_job(self):
        hits = [[at, signal.SIGKILL] for at in range(0, 3000, 100)]
        with self.assertRaisesRegex(flow.JobFailed, "gave up after 2 restarts"):
            self.summing(3000, 10, hits=hits, every=1000.0, retries=2)
        self.assertEqual(self.place.left_over(), [])


class Renewals(Elsewhere):
    """Workers that are started anew though they live."""

    def test_before_their_place_ends_them(self):
        """A job that takes longer than a start may: nobody dies."""
        self.place.limit = 6.0  # of them it uses four
        job = self.summing(16_000, 10)
        self.assertGreaterEqual(len(job.report.turn_overs), 1)
        self.assertEqual(job.report.restarts, [])
        self.assertEqual(job.report.json()["starts"], len(self.place.starts) + 1)

    def test_a_source_that_needs_all_of_its_time_for_what_it_has_made(self):
        self.place.limit = 6.0
        arguments = {"count": 16_000, "keys": 10, "pause": 0.0005, "resumes": False}
        with self.assertRaisesRegex(flow.JobFailed, "nothing new was made in its time: .*resumes=True"):
            self.run_job(jobs.summing, arguments=arguments, every=0.3)

    def test_no_store_is_told(self):
        self.place.limit = 600.0
        with self.assertWarnsRegex(UserWarning, "workers at processes run for 600 s at most: .* needs `checkpoints`"):
            self.summing(1000, 10, pause=0.0, store=False)

    def slow(self, count, **how):
        arguments = {"count": count, "folder": str(self.folder), "pause": 0.001, "is_skewed": how.pop("is_skewed", False)}
        job = self.run_job(jobs.one_is_slow, arguments=arguments, every=1.0, window=64 << 10, **how)
        self.assertEqual(sum(job.results), sum(range(count)))
        return job

    def test_a_straggler(self):
        job = self.slow(4000)
        self.assertEqual(job.report.stragglers, ["sum.2 works slower than its stage"])
        self.assertEqual((self.place.count("sum.2"), len(self.place.starts)), (2, 6))
        self.assertEqual(job.report.restarts, [])

    def test_one_that_has_more_to_do_is_let_be(self):
        job = self.slow(12_000, is_skewed=True)
        self.assertEqual((job.report.stragglers, len(self.place.starts)), ([], 5))

    def test_stragglers_that_are_let_be(self):
        job = self.slow(1000, stragglers=False)
        self.assertEqual((job.report.stragglers, len(self.place.starts)), ([], 5))


class Growing(Elsewhere):
    """Workers are started at the place while the job runs."""

    def growing(self, count, keys, asks, every=0.3, store=True, **how):
        arguments = {"count": count, "keys": keys, "folder": str(self.folder), "asks": asks, **how}
        job = self.run_job(jobs_growing.growing, store, arguments=arguments, every=every)
        self.assertEqual(dict(job.results), jobs.sums(count, keys))
        self.assertEqual(len(job.results), keys)
        given = sum(int(file.read_text()) for file in self.folder.glob("given-*"))
        self.assertEqual(job.report.stages["work"].workers, 1 + given)
        return job

    def test_more_work_more_workers(self):
        job = self.growing(4000, 10, [[100, 2], [501, 1], [2000, 9]], pause=0.0005)
        self.assertEqual(job.report.stages["work"].workers, 6)
        self.assertEqual(len([name for name, _ in self.place.starts if name.startswith("work.")]), 6)

    def test_without_a_store(self):
        self.growing(2000, 10, [[100, 2]], store=False)

    def test_whoever_dies_in_several_seeds(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                signal.alarm(2 * DEADLINE)
                draw, self.place = random.Random(seed), Watched()
                self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
                hits = [[draw.randrange(3000), signal.SIGKILL] for _ in range(2)]
                asks = [[at, 1] for at in draw.sample(range(3000), 3)]
                stage = draw.choice(["feed", "work", "reduce"])
                job = self.growing(3000, 10, asks, hits=hits, stage=stage, pause=0.0005, every=draw.choice([0.1, 0.3]))
                self.assertGreaterEqual(len(job.report.restarts), 1)


class Meeting(Elsewhere):
    def test_the_rendezvous_is_killed_in_mid_job(self):
        def restart():
            while not list(self.folder.glob("checkpoints/*/*/complete")) and not stop.wait(0.02):
                pass
            self.rendezvous.kill()
            self.rendezvous.start()

        stop = threading.Event()
        other = threading.Thread(target=restart)
        other.start()
        try:
            self.summing(8000, 10)
        finally:
            stop.set()
            other.join()


class Cancelled(Elsewhere):
    """Whatever ends a job, its workers end, too."""

    JOB = r"""
        import subprocess, sys, jobs_elsewhere
        from nearpath import dataflow as flow

        class Process(flow.Started):
            def __init__(self, orders):
                program = [sys.executable, "-m", "nearpath.dataflow"]
                self.process = subprocess.Popen(program, stdin=subprocess.PIPE, start_new_session=True)
                self.process.stdin.write(orders)
                self.process.stdin.close()

            def ended(self):
                code = self.process.poll()
                return None if code is None else str(code or "")

            def stop(self):
                self.process.kill()
                self.process.wait()

        class Far(flow.Place):
            def start(self, worker, orders):
                return Process(orders)  # nothing ties it to the job but what it hears

        _, url, key, pids, place, patience = sys.argv
        on = Far() if place == "far" else flow.Processes()
        flow.run(jobs_elsewhere.forever, on=on, rendezvous=url, key=key, patience=float(patience), arguments={"folder": pids})
    """

    def ended_by(self, number, place="near", patience=20.0):
        temp, pids = self.temp, self.folder / "pids"
        pids.mkdir()
        surroundings = dict(os.environ, TMPDIR=str(temp), PYTHONPATH=os.pathsep.join([str(HERE), *sys.path]))
        program = [sys.executable, "-c", textwrap.dedent(self.JOB)]
        program += [self.rendezvous.url, self.rendezvous.key, str(pids), place, str(patience)]
        with subprocess.Popen(program, stderr=subprocess.DEVNULL, env=surroundings) as job:
            while len(files := list(pids.iterdir())) < 2:
                self.assertIsNone(job.poll())
                time.sleep(0.01)
            children = [os.pidfd_open(int(file.name.removeprefix("pid-"))) for file in files]
            job.send_signal(number)
            code = job.wait()
        for child in children:
            select.select([child], [], [])  # readable once it has ended; if it never does, the alarm
            os.close(child)
        return code, list(temp.iterdir())

    def test_by_ctrl_c(self):
        self.assertEqual(self.ended_by(signal.SIGINT), (-signal.SIGINT, []))

    def test_by_sigterm(self):
        self.assertEqual(self.ended_by(signal.SIGTERM), (128 + signal.SIGTERM, []))

    def test_by_ctrl_c_far_away(self):
        self.assertEqual(self.ended_by(signal.SIGINT, "far"), (-signal.SIGINT, []))

    def test_by_sigkill(self):
        code, _ = self.ended_by(signal.SIGKILL)
        self.assertEqual(code, -signal.SIGKILL)

    def test_by_sigkill_far_away(self):
        """Workers that hear nothing of their job for its patience end."""
        code, _ = self.ended_by(signal.SIGKILL, "far", patience=5.0)
        self.assertEqual(code, -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
