"""Local jobs are exact despite deaths, and an ended job leaves nothing behind."""

import os
import signal
import textwrap
import time
import unittest

from cases import SignalledJobCase, TemporaryFolderCase
from jobs_remote import is_first_call
from jobs_local import numbers, summing, sums

from nearpath import dataflow as flow


class WorkerDeathTests(TemporaryFolderCase):
    """Kills workers during a job. The sums stay exact."""

    def die_once(self, at):
        def change(number):
            if number in at and is_first_call(self.folder, f"died-at-{number}"):
                os.kill(os.getpid(), signal.SIGKILL)
            return number

        return change

    def test_a_death_without_a_checkpoint_restarts_from_the_beginning(self):
        job = flow.run(summing(20_000, 100, self.die_once({11_000})), checkpoint_interval=1000)
        self.assertEqual(dict(job.results), sums(20_000, 100))
        self.assertEqual(job.report.checkpoints, 0)
        self.assertEqual(len(job.report.restarts), 1)

    def test_a_death_after_a_checkpoint_restarts_from_it(self):
        """Delays the source until a checkpoint precedes the death. Earlier items are not processed again."""
        place = self.folder

        def make(number, of):
            pause = SlowUntilCheckpoint(place / "folder")
            for item in range(number, 6000, of):
                if item >= 3000:
                    pause()
                yield item

        die = self.die_once({4000})
        counted = []

        def change(number):
            counted.append(number)
            if number == 5998:
                (place / f"counted-{os.getpid()}").write_text(str(len(counted)))
            return die(number)

        pairs = flow.source(make, workers=2) >> flow.map(lambda n: (change(n) % 10, n), workers=2)
        end = pairs >> flow.reduce_by_key(int.__add__, workers=3) >> flow.collect()
        job = flow.run(end, checkpoint_interval=0.1, folder=str(place / "folder"))
        self.assertEqual(dict(job.results), sums(6000, 10))
        self.assertEqual(len(job.report.restarts), 1)
        self.assertGreaterEqual(job.report.checkpoints, 1)
        (last,) = place.glob("counted-*")
        self.assertLess(int(last.read_text()), 2000, "items before the checkpoint were processed again")
        self.assertFalse((place / "folder" / "nearpath-job").exists())

    def test_deaths_of_a_reducer_and_of_a_starting_source_are_repaired(self):
        def add(left, right):
            if is_first_call(self.folder, "reducer"):
                os.kill(os.getpid(), signal.SIGKILL)
            return left + right

        def make(number, of):
            if is_first_call(self.folder, "start"):
                os.kill(os.getpid(), signal.SIGKILL)
            yield from range(number, 5000, of)

        pairs = flow.source(make, workers=2) >> flow.map(lambda n: (n % 10, n), workers=2)
        job = flow.run(pairs >> flow.reduce_by_key(add, workers=3) >> flow.collect(), checkpoint_interval=0.05)
        self.assertEqual(dict(job.results), sums(5000, 10))
        self.assertEqual(len(job.report.restarts), 2)

    def test_a_restart_includes_spilled_batches(self):
        """A barrier is spilled after batches, and the job resumes from it."""
        die = self.die_once({1800})

        def slow(item):
            time.sleep(0.0005)  # so that batches are spilled
            return die(item[0])

        source = flow.source(lambda number, of: ((item, "x" * 1000) for item in range(2000)))
        end = flow.map(slow).after(source, spill=True) >> flow.collect()
        job = flow.run(end, window=64 << 10, checkpoint_interval=0.1)
        self.assertEqual(job.results, list(range(2000)))
        self.assertEqual(len(job.report.restarts), 1)
        self.assertGreater(job.report.stages["source"].spilled, 0)

    def test_repeated_deaths_end_the_job(self):
        def die(number):
            os.kill(os.getpid(), signal.SIGKILL)

        with self.assertRaisesRegex(flow.JobFailed, "gave up after 2 restarts; the last: map.*killed by SIGKILL"):
            flow.run(numbers(10) >> flow.map(die) >> flow.collect(), retries=2)

    def test_the_next_run_resumes_from_the_last_checkpoint(self):
        """The first run fails after a checkpoint, and the second one begins there."""
        folder = self.folder / "folder"

        def make(number, of):
            pause = SlowUntilCheckpoint(folder)
            for item in range(6000):
                if item >= 3000:
                    pause()
                yield item

        def change(number):
            if number == 5000 and is_first_call(self.folder, "failed"):
                raise OSError("the disk is full")
            return number

        end = flow.source(make) >> flow.map(change) >> flow.collect()
        with self.assertRaisesRegex(flow.JobFailed, "the disk is full"):
            flow.run(end, checkpoint_interval=0.1, folder=str(folder))
        with self.assertRaisesRegex(ValueError, "holds another job"):
            flow.run(numbers(1) >> flow.collect(), folder=str(folder))
        job = flow.run(end, checkpoint_interval=0.1, folder=str(folder))
        self.assertEqual(job.results, list(range(6000)))
        self.assertLess(job.report.stages["map"].items, 3500)

    def test_a_second_run_in_the_same_folder_is_refused(self):
        folder = str(self.folder / "folder")

        def make(number, of):
            again = numbers(1) >> flow.collect()
            (self.folder / "refusal").write_text(refused(again))
            yield 1

        def refused(job):
            try:
                flow.run(job, folder=folder)
            except ValueError as error:
                return str(error)

        self.assertEqual(flow.run(flow.source(make) >> flow.collect(), folder=folder).results, [1])
        self.assertRegex((self.folder / "refusal").read_text(), "another run uses .*: end it")


class SlowUntilCheckpoint:
    """A source that is slow until a checkpoint is complete that began after the first call: they begin between two items.

    A source that resumes is not slow: no checkpoint begins while it skips its earlier items.
    """

    def __init__(self, folder):
        self.folder = folder / "nearpath-job" / "checkpoints"
        self.until = 0 if self.last() else None

    def last(self):
        return max((int(complete.parent.name) for complete in self.folder.glob("*/complete")), default=0)

    def __call__(self):
        last = self.last() if self.until != 0 else 0
        self.until = last + 2 if self.until is None else self.until
        if last < self.until:
            time.sleep(0.02)


class CancellationTests(SignalledJobCase):
    """An ended job ends its workers."""

    JOB = """
        import sys, jobs_remote
        from nearpath import dataflow as flow

        flow.run(jobs_remote.endless(sys.argv[1]))
    """

    HOOK = "import os, signal; os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"

    def test_ctrl_c_ends_all_workers_and_removes_files(self):
        self.assertEqual((self.exit_code_after(signal.SIGINT, self.JOB), self.remaining_files()), (-signal.SIGINT, []))

    def test_ctrl_c_during_a_fork_ends_the_job(self):
        """Python drops an exception of a signal handler during a fork."""
        job = self.start_program(self.HOOK + textwrap.dedent(self.JOB), self.folder)
        self.assertEqual((job.wait(), self.remaining_files()), (-signal.SIGINT, []))

    def test_sigterm_ends_all_workers_and_removes_files(self):
        self.assertEqual((self.exit_code_after(signal.SIGTERM, self.JOB), self.remaining_files()), (128 + signal.SIGTERM, []))

    def test_sigkill_ends_all_workers_and_the_next_job_removes_files(self):
        """No process remains, and the next job removes the files."""
        self.assertEqual(self.exit_code_after(signal.SIGKILL, self.JOB), -signal.SIGKILL)
        self.assertEqual(len(self.remaining_files()), 1)
        flow.run(numbers(1) >> flow.collect())
        self.assertEqual(self.remaining_files(), [])


if __name__ == "__main__":
    unittest.main()
