"""Jobs with worker processes and a real rendezvous give exact sums despite deaths. `make test-jobs` runs these."""

import random
import signal
import threading
import unittest

import jobs_remote as jobs
import jobs_scale_out
from rendezvous_fixture import RemoteJobCase, CountedProcesses
from test_dataflow_remote import CancelledJobCase

from nearpath import dataflow as flow


class RemoteDeathTests(RemoteJobCase):
    def test_a_death_without_a_store_restarts_from_the_beginning(self):
        job = self.run_summing(3000, 10, signals=[[2000, signal.SIGKILL]], store=False)
        self.assertEqual(len(job.report.restarts), 1)
        self.assertIn("died (killed by SIGKILL", job.report.restarts[0])
        self.assertEqual(job.report.checkpoints, 0)

    def test_random_deaths_leave_the_sums_exact(self):
        self.run_with_random_deaths([0.1, 0.3, 1000.0])

    def test_a_worker_that_loses_its_state_makes_the_sums_wrong(self):
        """Shows that these tests detect a worker that does not restore its state."""
        for remembers in (True, False):
            self.folder = self.new_folder()
            arguments = {"count": 2000, "keys": 10, "folder": str(self.folder), "remembers": remembers}
            job = self.run_job(jobs.forgetful, arguments=arguments, checkpoint_interval=0.1)
            self.assertEqual(len(job.report.restarts), 1)
            self.assertEqual(dict(job.results) == jobs.sums(2000, 10), remembers)

    def test_random_kills_leave_the_sums_exact(self):
        draw, stop = random.Random(4), threading.Event()

        def kill():
            for _ in range(4):
                if stop.wait(draw.uniform(0.5, 1.0)):
                    return
                self.place.kill(draw.choice(["source.0", "source.1", "map.0", "map.2", "reduce-by-key.1"]))

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            self.run_summing(8000, 10, retries=10)
        finally:
            stop.set()
            killer.join()

    def test_a_start_without_a_report_counts_as_dead(self):
        """The process runs and sends no message."""
        self.place = CountedProcesses(before={"map.1": ["sh", "-c", "sleep 1000"]})
        job = self.run_summing(1000, 10, pause=0.0, contact_timeout=4.0)
        self.assertIn("map.1 died (no message within 4 s)", job.report.restarts[0])

    def test_a_stopped_worker_counts_as_dead(self):
        """A stopped worker keeps its streams, so the job detects only the missing messages."""
        job = self.run_summing(3000, 10, signals=[[2000, signal.SIGSTOP]], silence_timeout=4.0, retries=10)
        self.assertRegex(" ".join(job.report.restarts), r"map\.\d died \(silent for \d+ s\)")

    def test_repeated_deaths_end_the_job(self):
        signals = [[at, signal.SIGKILL] for at in range(0, 3000, 100)]
        with self.assertRaisesRegex(flow.JobFailed, "gave up after 2 restarts"):
            self.run_summing(3000, 10, signals=signals, checkpoint_interval=1000.0, retries=2)
        self.assertEqual(self.place.running_workers(), [])


class RenewalTests(RemoteJobCase):
    """Restarts of live workers."""

    def test_workers_are_renewed_before_their_limit(self):
        """A job outlasts the time limit of its starts without a death."""
        self.place.limit = 6.0  # the job renews workers after 4 s (`_renewals.margin`)
        job = self.run_summing(16_000, 10)
        self.assertGreaterEqual(len(job.report.renewals), 1)
        self.assertEqual(job.report.restarts, [])
        self.assertEqual(job.report.json()["starts"], len(self.place.starts) + 1)

    def test_a_source_without_progress_ends_the_job(self):
        self.place.limit = 6.0
        arguments = {"count": 16_000, "keys": 10, "pause": 0.0005, "resumes": False}
        with self.assertRaisesRegex(flow.JobFailed, "no progress was made in its time: .*resumes=True"):
            self.run_job(jobs.summing, arguments=arguments, checkpoint_interval=0.3)

    def run_one_slow_worker(self, count, **options):
        arguments = {"count": count, "folder": str(self.folder), "pause": 0.001, "is_skewed": options.pop("is_skewed", False)}
        job = self.run_job(jobs.one_slow_worker, arguments=arguments, checkpoint_interval=1.0, window=64 << 10, **options)
        self.assertEqual(sum(job.results), sum(range(count)))
        return job

    def test_a_straggler_is_restarted(self):
        job = self.run_one_slow_worker(4000)
        self.assertEqual(job.report.stragglers, ["sum.2 works slower than its stage"])
        self.assertEqual((self.place.count("sum.2"), len(self.place.starts)), (2, 6))
        self.assertEqual(job.report.restarts, [])

    def test_a_worker_with_more_work_is_not_restarted(self):
        job = self.run_one_slow_worker(12_000, is_skewed=True)
        self.assertEqual((job.report.stragglers, len(self.place.starts)), ([], 5))

    def test_stragglers_are_kept_without_detection(self):
        job = self.run_one_slow_worker(1000, stragglers=False)
        self.assertEqual((job.report.stragglers, len(self.place.starts)), ([], 5))


class RemoteScaleOutTests(RemoteJobCase):
    """Workers start at the place while the job runs."""

    def run_scaling_out(self, count, keys, worker_requests, checkpoint_interval=0.3, store=True, **options):
        arguments = {"count": count, "keys": keys, "folder": str(self.folder), "worker_requests": worker_requests, **options}
        job = self.run_job(jobs_scale_out.scaling_out, store, arguments=arguments, checkpoint_interval=checkpoint_interval)
        self.assertEqual(dict(job.results), jobs.sums(count, keys))
        self.assertEqual(len(job.results), keys)
        granted = sum(int(file.read_text()) for file in self.folder.glob("granted-*"))
        self.assertEqual(job.report.stages["work"].workers, 1 + granted)
        return job

    def test_requested_workers_start_at_the_place(self):
        job = self.run_scaling_out(4000, 10, [[100, 2], [501, 1], [2000, 9]], pause=0.0005)
        self.assertEqual(job.report.stages["work"].workers, 6)
        self.assertEqual(len([name for name, _ in self.place.starts if name.startswith("work.")]), 6)

    def test_workers_are_added_without_a_store(self):
        self.run_scaling_out(2000, 10, [[100, 2]], store=False)

    def test_random_deaths_leave_the_sums_exact(self):
        for seed in range(4):
            with self.subTest(seed=seed):
                signal.alarm(self.seconds)
                draw, self.place = random.Random(seed), CountedProcesses()
                self.folder = self.new_folder()
                signals = [[draw.randrange(3000), signal.SIGKILL] for _ in range(2)]
                worker_requests = [[at, 1] for at in draw.sample(range(3000), 3)]
                stage = draw.choice(["feed", "work", "reduce"])
                job = self.run_scaling_out(3000, 10, worker_requests, signals=signals, stage=stage, pause=0.0005, checkpoint_interval=draw.choice([0.1, 0.3]))
                self.assertGreaterEqual(len(job.report.restarts), 1)


class RendezvousTests(RemoteJobCase):
    def test_a_killed_rendezvous_leaves_the_sums_exact(self):
        def restart():
            while not list(self.folder.glob("checkpoints/*/*/complete")) and not stop.wait(0.02):
                pass
            self.rendezvous.kill()
            self.rendezvous.start()

        stop = threading.Event()
        restarter = threading.Thread(target=restart)
        restarter.start()
        try:
            self.run_summing(8000, 10)
        finally:
            stop.set()
            restarter.join()


class RemoteKillTests(CancelledJobCase):
    def test_sigkill_ends_workers_without_a_parent_process(self):
        """Workers end after `contact_timeout` seconds without a message of their job."""
        self.assertEqual(self.end_by(signal.SIGKILL, "detached", contact_timeout=5.0), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
