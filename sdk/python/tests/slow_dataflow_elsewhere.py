"""Jobs whose workers are processes of their own that meet at a real rendezvous: exact, whoever dies. `make test-jobs` runs these."""

import random
import signal
import threading
import unittest

import jobs_elsewhere as jobs
import jobs_growing
from rendezvous_fixture import Elsewhere, CountedProcesses
from test_dataflow_elsewhere import Ended

from nearpath import dataflow as flow


class Deaths(Elsewhere):
    def test_without_a_store_from_the_beginning(self):
        job = self.summing(3000, 10, hits=[[2000, signal.SIGKILL]], store=False)
        self.assertEqual(len(job.report.restarts), 1)
        self.assertIn("died (signal 9)", job.report.restarts[0])
        self.assertEqual(job.report.checkpoints, 0)

    def test_whoever_dies_in_several_seeds(self):
        self.run_with_random_deaths([0.1, 0.3, 1000.0])

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

    def test_a_start_that_comes_to_nothing(self):
        """It runs, and says nothing."""
        self.place = CountedProcesses(before={"map.1": ["sh", "-c", "sleep 1000"]})
        job = self.summing(1000, 10, pause=0.0, patience=4.0)
        self.assertIn("map.1 died (no word from it within 4 s)", job.report.restarts[0])

    def test_one_that_is_silent(self):
        """Stopped, it holds its streams: only its silence tells."""
        job = self.summing(3000, 10, hits=[[2000, signal.SIGSTOP]], silence=4.0, retries=10)
        self.assertRegex(" ".join(job.report.restarts), r"map\.\d died \(silent for \d+ s\)")

    def test_who_dies_again_and_again_ends_the_job(self):
        hits = [[at, signal.SIGKILL] for at in range(0, 3000, 100)]
        with self.assertRaisesRegex(flow.JobFailed, "gave up after 2 restarts"):
            self.summing(3000, 10, hits=hits, every=1000.0, retries=2)
        self.assertEqual(self.place.running_workers(), [])


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
                signal.alarm(self.seconds)
                draw, self.place = random.Random(seed), CountedProcesses()
                self.folder = self.new_folder()
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


class Cancelled(Ended):
    def test_by_sigkill_far_away(self):
        """Workers that hear nothing of their job for its patience end."""
        self.assertEqual(self.end_by(signal.SIGKILL, "far", patience=5.0), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
