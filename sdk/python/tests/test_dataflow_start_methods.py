"""Local workers as forked and as importing processes."""

import contextlib
import functools
import os
import pathlib
import signal
import tempfile
import unittest

from cases import DeadlineCase
from jobs_local import numbers, sums
from jobs_remote import add, is_first_call

from nearpath import dataflow as flow
from nearpath.dataflow._start_methods import describe_threads


def make(number, of):
    yield from range(number, 1000, of)


def keyed(folder, item):
    if item == 500 and is_first_call(folder, "died"):
        os.kill(os.getpid(), signal.SIGKILL)
    return item % 10, item


class StartMethodTests(DeadlineCase):
    def check_job(self, method):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        pairs = flow.source(make, workers=2) >> flow.map(functools.partial(keyed, folder), workers=2)
        job = flow.run(pairs >> flow.reduce_by_key(add, workers=2) >> flow.collect(), start_method=method)
        self.assertEqual(dict(job.results), sums(1000, 10))
        self.assertRegex(job.report.restarts[0], r"map\.\d died")
        self.assertEqual(len(job.report.restarts), 1)

    def test_a_fork_server_starts_and_replaces_workers(self):
        self.check_job("forkserver")

    def test_spawned_workers_start_and_are_replaced(self):
        self.check_job("spawn")

    def test_code_that_cannot_be_imported_is_refused_with_all_stages(self):
        job = numbers(10) >> flow.map(lambda number: number) >> flow.collect()
        with self.assertRaisesRegex(ValueError, "stage source cannot be pickled.*stage map cannot be pickled.*functools.partial"):
            flow.run(job, start_method="spawn")

    def test_an_unknown_method_is_refused(self):
        with self.assertRaisesRegex(ValueError, "invalid start method 'thread': expected fork, forkserver, spawn"):
            flow.run(numbers(10) >> flow.collect(), start_method="thread")


def readable_pipes(item):
    """Returns the pipes that this process reads."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            flags = int(pathlib.Path(f"/proc/self/fdinfo/{number}").read_text().split()[3], 8)
            target = os.readlink(f"/proc/self/fd/{number}")
            if target.startswith("pipe:") and flags & os.O_ACCMODE == os.O_RDONLY:
                found.add(target)
    return sorted(found)


class InheritedPipeTests(DeadlineCase):
    def test_a_forked_worker_does_not_read_the_pipe_of_heartbeats(self):
        before = readable_pipes(None)
        (in_worker,) = flow.run(numbers(1) >> flow.map(readable_pipes) >> flow.collect()).results
        self.assertEqual(in_worker, before)


class ThreadWarningTests(unittest.TestCase):
    def test_threads_that_make_a_fork_unsafe_are_described(self):
        self.assertIsNone(describe_threads(0, [], ["polars"]))
        self.assertEqual(describe_threads(2, [], ["polars", "numpy"]), "2 other threads, perhaps of polars")
        self.assertEqual(describe_threads(2, ["loader"], ["numpy"]), "2 other threads (loader)")
        self.assertEqual(describe_threads(3, [], ["json"]), "3 other threads, of native code")
        self.assertIsNone(describe_threads(3, [], ["numpy"]))


if __name__ == "__main__":
    unittest.main()
