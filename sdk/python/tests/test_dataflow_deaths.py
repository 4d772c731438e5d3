"""Jobs on this machine, exact whoever dies; and that nothing stays of one that is ended."""

import os
import signal
import textwrap
import time
import unittest

from cases import EndedBySignal, OwnTemp
from jobs_elsewhere import once
from jobs_here import numbers, summing, sums

from nearpath import dataflow as flow


class Deaths(OwnTemp):
    """Somebody is killed in mid-stream; the sums are as if nobody had been."""

    def die_once(self, at):
        def change(number):
            if number in at and once(self.folder, f"died-at-{number}"):
                os.kill(os.getpid(), signal.SIGKILL)
            return number

        return change

    def test_in_mid_stream_from_the_beginning(self):
        job = flow.run(summing(20_000, 100, self.die_once({11_000})), every=1000)
        self.assertEqual(dict(job.results), sums(20_000, 100))
        self.assertEqual(job.report.checkpoints, 0)
        self.assertEqual(len(job.report.restarts), 1)

    def test_in_mid_stream_from_a_checkpoint(self):
        """The source is slow until there is a checkpoint, so one lies before the death; what it had made by then is not made again."""
        place = self.folder

        def make(number, of):
            pause = Pause(place / "folder")
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
        job = flow.run(end, every=0.1, folder=str(place / "folder"))
        self.assertEqual(dict(job.results), sums(6000, 10))
        self.assertEqual(len(job.report.restarts), 1)
        self.assertGreaterEqual(job.report.checkpoints, 1)
        (last,) = place.glob("counted-*")
        self.assertLess(int(last.read_text()), 2000, "what lay before the checkpoint was done again")
        self.assertFalse((place / "folder" / "nearpath-job").exists())

    def test_at_the_reducer_and_at_the_start(self):
        def add(left, right):
            if once(self.folder, "reducer"):
                os.kill(os.getpid(), signal.SIGKILL)
            return left + right

        def make(number, of):
            if once(self.folder, "start"):
                os.kill(os.getpid(), signal.SIGKILL)
            yield from range(number, 5000, of)

        pairs = flow.source(make, workers=2) >> flow.map(lambda n: (n % 10, n), workers=2)
        job = flow.run(pairs >> flow.reduce_by_key(add, workers=3) >> flow.collect(), every=0.05)
        self.assertEqual(dict(job.results), sums(5000, 10))
        self.assertEqual(len(job.report.restarts), 2)

    def test_with_what_lies_on_disk(self):
        """A barrier goes to disk behind batches, and the job goes on from it."""
        die = self.die_once({1800})

        def slow(item):
            time.sleep(0.0005)  # so that there is something on disk
            return die(item[0])

        source = flow.source(lambda number, of: ((item, "x" * 1000) for item in range(2000)))
        end = flow.map(slow).after(source, spill=True) >> flow.collect()
        job = flow.run(end, window=64 << 10, every=0.1)
        self.assertEqual(job.results, list(range(2000)))
        self.assertEqual(len(job.report.restarts), 1)
        self.assertGreater(job.report.stages["source"].spilled, 0)

    def test_who_dies_again_and_again_ends_the_job(self):
        def die(number):
            os.kill(os.getpid(), signal.SIGKILL)

        with self.assertRaisesRegex(flow.JobFailed, "gave up after 2 restarts; the last: map.*signal 9"):
            flow.run(numbers(10) >> flow.map(die) >> flow.collect(), retries=2)

    def test_a_run_goes_on_where_the_last_one_failed(self):
        """The first fails behind a checkpoint; the second begins there."""
        folder = self.folder / "folder"

        def make(number, of):
            pause = Pause(folder)
            for item in range(6000):
                if item >= 3000:
                    pause()
                yield item

        def change(number):
            if number == 5000 and once(self.folder, "failed"):
                raise OSError("the disk is full")
            return number

        end = flow.source(make) >> flow.map(change) >> flow.collect()
        with self.assertRaisesRegex(flow.JobFailed, "the disk is full"):
            flow.run(end, every=0.1, folder=str(folder))
        with self.assertRaisesRegex(ValueError, "holds another job"):
            flow.run(numbers(1) >> flow.collect(), folder=str(folder))
        job = flow.run(end, every=0.1, folder=str(folder))
        self.assertEqual(job.results, list(range(6000)))
        self.assertLess(job.report.stages["map"].items, 3500)

    def test_two_runs_do_not_share_a_folder(self):
        folder = str(self.folder / "folder")

        def make(number, of):
            again = numbers(1) >> flow.collect()
            (self.folder / "told").write_text(refused(again))
            yield 1

        def refused(job):
            try:
                flow.run(job, folder=folder)
            except ValueError as error:
                return str(error)

        self.assertEqual(flow.run(flow.source(make) >> flow.collect(), folder=folder).results, [1])
        self.assertRegex((self.folder / "told").read_text(), "another run uses .*: end that one")


class Pause:
    """A source that is slow until a checkpoint is complete that began after the first call: they begin between two items."""

    def __init__(self, folder):
        self.folder, self.until = folder / "nearpath-job" / "checkpoints", None

    def __call__(self):
        last = max((int(complete.parent.name) for complete in self.folder.glob("*/complete")), default=0)
        self.until = self.until or last + 2
        if last < self.until:
            time.sleep(0.02)


class Cancelled(EndedBySignal):
    """Whatever ends a job, its workers end, too."""

    JOB = """
        import sys, jobs_elsewhere
        from nearpath import dataflow as flow

        flow.run(jobs_elsewhere.forever(sys.argv[1]))
    """

    HOOK = "import os, signal; os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"

    def test_by_ctrl_c(self):
        self.assertEqual((self.ended_by(signal.SIGINT, self.JOB), self.left()), (-signal.SIGINT, []))

    def test_by_ctrl_c_while_python_forks(self):
        """What a handler raises there is dropped."""
        job = self.begin(self.HOOK + textwrap.dedent(self.JOB), self.folder)
        self.assertEqual((job.wait(), self.left()), (-signal.SIGINT, []))

    def test_by_sigterm(self):
        self.assertEqual((self.ended_by(signal.SIGTERM, self.JOB), self.left()), (128 + signal.SIGTERM, []))

    def test_by_sigkill(self):
        """No process; the next job removes its files."""
        self.assertEqual(self.ended_by(signal.SIGKILL, self.JOB), -signal.SIGKILL)
        self.assertEqual(len(self.left()), 1)
        flow.run(numbers(1) >> flow.collect())
        self.assertEqual(self.left(), [])


if __name__ == "__main__":
    unittest.main()
