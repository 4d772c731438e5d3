"""Workers elsewhere that are started twice, that leave something behind or say too much, and orders that are none."""

import contextlib
import os
import pathlib
import signal
import tempfile
import threading
import time
import unittest
import unittest.mock

import jobs_faults as jobs
from rendezvous_fixture import Rendezvous, CountedProcesses
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import elsewhere
from nearpath.dataflow._attempt import Restart, Attempt


class Second(flow.Started):
    """Of two starts of one worker, which both run, the place knows the second."""

    def __init__(self, first, begun, start):
        self.first, self.second, self.is_over = first, None, threading.Event()

        def again():
            while not begun.exists() and not self.is_over.wait(0.01):
                pass
            self.second = start()

        threading.Thread(target=again, daemon=True).start()

    def ended(self):
        return self.second and self.second.ended()

    def stop(self):
        self.is_over.set()
        for started in filter(None, (self.first, self.second)):
            started.stop()


class Twice(CountedProcesses):
    """Starts each worker once more, when the first start is at work."""

    def __init__(self, begun):
        super().__init__()
        self.begun = begun

    def start(self, worker, orders):
        started = super().start(worker, orders)
        return started if self.begun.exists() else Second(started, self.begun, lambda: super(Twice, self).start(worker, orders))


def too_late(number, frame):
    raise TimeoutError("the test takes too long")


class Faults(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendezvous = Rendezvous(pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())))
        cls.addClassCleanup(cls.rendezvous.stop)

    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, too_late))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(DEADLINE)
        self.folder, self.temp = (pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) for _ in range(2))
        self.enterContext(unittest.mock.patch.dict(os.environ, TMPDIR=str(self.temp)))
        self.enterContext(unittest.mock.patch.object(tempfile, "tempdir", str(self.temp)))

    def run_job(self, job, place=None, **how):
        how = {"rendezvous": self.rendezvous.url, "key": self.rendezvous.key, "patience": 20.0, **how}
        return flow.run(job, on=place or CountedProcesses(), **how)

    def test_a_worker_that_is_started_twice(self):
        """Its streams end with the first start, which the job notices; this one has none."""
        place = Twice(self.folder / "begun")
        done = self.run_job(jobs.alone, place, arguments={"folder": str(self.folder)})
        self.assertEqual(done.report.restarts, ["source.0 died (another start of it has taken its place)"])
        self.assertEqual((place.running_workers(), list(self.temp.iterdir())), ([], []))

    def test_what_a_worker_leaves(self):
        done = self.run_job(jobs.leaving, arguments={"folder": str(self.folder)})
        children = [int(file.name.removeprefix("pid-")) for file in self.folder.glob("pid-*")]
        left = [child for child in children if is_running(child)]
        for child in left:
            os.kill(child, signal.SIGKILL)
        self.assertEqual((len(children), left), (2, []))
        self.assertEqual(done.results, [1])
        self.assertEqual(done.report.restarts, ["source.0 died (it ended before it was through)"])
        self.assertEqual(list(self.temp.iterdir()), [], "folders")

    def test_an_exception_that_is_longer_than_a_word_may_be(self):
        with self.assertRaisesRegex(flow.JobFailed, "^map.0 raised ValueError: so it is: x") as raised:
            self.run_job(jobs.verbose)
        self.assertLess(len(str(raised.exception)), 50_000)

    def test_orders_that_are_none_leave_no_folder(self):
        for orders in (b"{}", b"nothing", b'{"version": 2}'):
            with self.subTest(orders), self.assertRaises(ValueError):
                elsewhere.run(orders)
        self.assertEqual(list(self.temp.iterdir()), [])


def is_running(pid):
    """Who has ended may still be listed, until somebody has waited for it."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


class Decisions(unittest.TestCase):
    def test_who_has_taken_part_and_knows_of_no_attempt_is_another_start(self):
        attempt = Attempt(3, 0, (), ("a", "b"), 0.0)
        for before in (0, 2):
            attempt.receive("a", {"attempt": before}, 1.0)  # it has not heard of this one yet
            self.assertIsNone(attempt.outcome(1.0))
        for name in "ab":
            attempt.receive(name, {"attempt": 3}, 2.0)
        attempt.receive("b", {"attempt": 3, "finished": True}, 3.0)
        attempt.receive("b", {"attempt": 0}, 4.0)  # who is through may be started as often as it likes
        self.assertIsNone(attempt.outcome(4.0))
        attempt.receive("a", {"attempt": 0}, 5.0)
        again = attempt.outcome(5.0)
        self.assertIsInstance(again, Restart)
        self.assertEqual((again.replaced, again.why), (frozenset("a"), "a died (another start of it has taken its place)"))


if __name__ == "__main__":
    unittest.main()
