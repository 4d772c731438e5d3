"""Remote workers that are started twice, leave processes or send long errors, and invalid orders."""

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
from nearpath.dataflow import remote_worker
from nearpath.dataflow._attempt import Restart, Attempt


class SecondStart(flow.Started):
    """Two running starts of a worker, of which the place reports the second."""

    def __init__(self, first, begun, start):
        self.first, self.second, self.is_stopped = first, None, threading.Event()

        def again():
            while not begun.exists() and not self.is_stopped.wait(0.01):
                pass
            self.second = start()

        threading.Thread(target=again, daemon=True).start()

    def ended(self):
        return self.second and self.second.ended()

    def stop(self):
        self.is_stopped.set()
        for started in filter(None, (self.first, self.second)):
            started.stop()


class DoubleStartPlace(CountedProcesses):
    """Starts each worker again while its first start runs."""

    def __init__(self, begun):
        super().__init__()
        self.begun = begun

    def start(self, worker, orders):
        started = super().start(worker, orders)
        return started if self.begun.exists() else SecondStart(started, self.begun, lambda: super(DoubleStartPlace, self).start(worker, orders))


def raise_timeout(number, frame):
    raise TimeoutError("the test exceeded its deadline")


class RemoteFaultTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendezvous = Rendezvous(pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory())))
        cls.addClassCleanup(cls.rendezvous.stop)

    def setUp(self):
        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, raise_timeout))
        self.addCleanup(signal.alarm, 0)
        signal.alarm(DEADLINE)
        self.folder, self.temp = (pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) for _ in range(2))
        self.enterContext(unittest.mock.patch.dict(os.environ, TMPDIR=str(self.temp)))
        self.enterContext(unittest.mock.patch.object(tempfile, "tempdir", str(self.temp)))

    def run_job(self, job, place=None, **options):
        options = {"rendezvous": self.rendezvous.url, "key": self.rendezvous.key, "contact_timeout": 20.0, **options}
        return flow.run(job, on=place or CountedProcesses(), **options)

    def test_a_second_start_of_a_worker_replaces_the_first(self):
        """The worker has no streams, whose end would show the replacement."""
        place = DoubleStartPlace(self.folder / "begun")
        done = self.run_job(jobs.endless_first_start, place, arguments={"folder": str(self.folder)})
        self.assertEqual(done.report.restarts, ["source.0 died (another start has replaced it)"])
        self.assertEqual((place.running_workers(), list(self.temp.iterdir())), ([], []))

    def test_processes_that_a_worker_leaves_are_ended(self):
        done = self.run_job(jobs.leaves_processes, arguments={"folder": str(self.folder)})
        children = [int(file.name.removeprefix("pid-")) for file in self.folder.glob("pid-*")]
        left = [child for child in children if is_running(child)]
        for child in left:
            os.kill(child, signal.SIGKILL)
        self.assertEqual((len(children), left), (2, []))
        self.assertEqual(done.results, [1])
        self.assertEqual(done.report.restarts, ["source.0 died (it ended before its work was finished)"])
        self.assertEqual(list(self.temp.iterdir()), [], "folders")

    def test_an_exception_longer_than_a_message_is_shortened(self):
        with self.assertRaisesRegex(flow.JobFailed, "^map.0 raised ValueError: so it is: x") as raised:
            self.run_job(jobs.raises_long_error)
        self.assertLess(len(str(raised.exception)), 50_000)

    def test_invalid_orders_leave_no_folder(self):
        for orders in (b"{}", b"nothing", b'{"version": 2}'):
            with self.subTest(orders), self.assertRaises(ValueError):
                remote_worker.run(orders)
        self.assertEqual(list(self.temp.iterdir()), [])


def is_running(pid):
    """Returns whether a process runs. An ended process is listed until it is reaped."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


class SecondStartDecisionTests(unittest.TestCase):
    def test_a_participant_without_an_attempt_is_another_start(self):
        attempt = Attempt(3, 0, (), ("a", "b"), 0.0)
        for before in (0, 2):
            attempt.receive("a", {"attempt": before}, 1.0)  # sent before the current plan
            self.assertIsNone(attempt.outcome(1.0))
        for name in "ab":
            attempt.receive(name, {"attempt": 3}, 2.0)
        attempt.receive("b", {"attempt": 3, "finished": True}, 3.0)
        attempt.receive("b", {"attempt": 0}, 4.0)  # further starts of a finished worker do not matter
        self.assertIsNone(attempt.outcome(4.0))
        attempt.receive("a", {"attempt": 0}, 5.0)
        again = attempt.outcome(5.0)
        self.assertIsInstance(again, Restart)
        self.assertEqual((again.replaced, again.why), (frozenset("a"), "a died (another start has replaced it)"))


if __name__ == "__main__":
    unittest.main()
