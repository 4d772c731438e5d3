"""Local workers that are stopped, hang, or hold the interpreter's lock."""

import ctypes
import os
import signal
import threading
import types
import unittest

from cases import TemporaryFolderCase
from jobs_local import numbers, summing, sums
from jobs_remote import is_first_call

from nearpath import dataflow as flow
from nearpath.dataflow._backend import Diagnosis
from nearpath.dataflow._job import MAX_DIAGNOSES, Coordinator
from nearpath.dataflow._stalls import Stall


class StuckWorkerTests(TemporaryFolderCase):
    """One process of a worker gets stuck at one item."""

    def stuck_once(self, get_stuck):
        def change(number):
            if number == 150 and is_first_call(self.folder, "stuck"):
                get_stuck()
            return number

        return summing(300, 10, change)

    def test_a_stopped_worker_is_replaced(self):
        job = flow.run(self.stuck_once(lambda: os.kill(os.getpid(), signal.SIGSTOP)), silence_timeout=1.0)
        self.assertEqual(dict(job.results), sums(300, 10))
        (why,) = job.report.restarts
        self.assertRegex(why, r"map\.\d died \(silent for \d+ s: its process is stopped by a signal")

    def test_a_worker_that_waits_for_a_lock_of_a_thread_before_the_fork_is_reported_with_its_stack(self):
        """The thread is not in the worker, so nothing releases the lock there."""
        held, is_held, may_end = threading.Lock(), threading.Event(), threading.Event()

        def hold():
            with held:
                is_held.set()
                may_end.wait()

        def wait_for_the_held_lock():
            with held:
                pass

        thread = threading.Thread(target=hold, name="holder")
        thread.start()
        self.addCleanup(thread.join)
        self.addCleanup(may_end.set)
        is_held.wait()
        with self.assertWarnsRegex(RuntimeWarning, r"has 1 other threads \(holder\).*start_method='forkserver'"):
            job = flow.run(self.stuck_once(wait_for_the_held_lock), stall_report_timeout=0.5, stall_timeout=1.0)
        self.assertEqual(dict(job.results), sums(300, 10))
        self.assertRegex(job.report.restarts[0], r"map\.\d died \(no progress for 1 s, the limit is 1 s\)")
        self.assertRegex(job.report.stalls[0], r"^map\.\d: no progress for \d s")
        self.assertIn("in wait_for_the_held_lock", job.report.stalls[0])

    def test_a_worker_that_holds_the_interpreters_lock_is_reported_and_continues(self):
        """Native code that holds the lock longer than the silence timeout is slow, not dead."""
        hold_lock = lambda: ctypes.PyDLL(None).usleep(3_000_000)
        job = flow.run(self.stuck_once(hold_lock), silence_timeout=1.0, stall_report_timeout=0.5)
        self.assertEqual((dict(job.results), job.report.restarts), (sums(300, 10), []))
        self.assertIn("in <lambda>", job.report.stalls[0])

    def test_a_worker_that_hangs_before_its_first_item_is_reported(self):
        class HangsAtStart(flow.Worker):
            def start(worker):
                if is_first_call(self.folder, "hangs"):
                    threading.Event().wait()

        hangs = flow.stage(HangsAtStart)
        job = flow.run(numbers(10) >> hangs >> flow.collect(), stall_report_timeout=0.5, stall_timeout=1.0)
        self.assertEqual(sorted(job.results), list(range(10)))
        self.assertRegex(job.report.stalls[0], "^hangsatstart.0: no progress(.|\n)* in start\n")


class DiagnosisTests(unittest.TestCase):
    def test_one_check_diagnoses_a_bounded_number_of_dead_and_slow_workers(self):
        names, diagnosed, dead = [f"map.{number}" for number in range(30)], [], []

        class Handle:
            has_reported = True

            def __init__(self, name):
                self.name = name

            def diagnose(self):
                diagnosed.append(self.name)
                return Diagnosis("asleep")

        job = types.SimpleNamespace(
            handles={name: Handle(name) for name in names},
            watch=types.SimpleNamespace(find_dead=lambda *_: dict.fromkeys(names[:3], "silent")),
            backend=types.SimpleNamespace(is_connected=lambda: True),
            stalls=types.SimpleNamespace(find=lambda *_: [Stall(name, 30.0, True) for name in names[3:]]),
            handle_stall=lambda attempt, stall, diagnosis: dead.append(stall.name),
        )
        attempt = types.SimpleNamespace(
            workers={}, has_all_joined=True, check_arrivals=lambda _: {}, mark_ended=lambda name, how: dead.append(name)
        )
        Coordinator.find_stuck(job, attempt)
        self.assertEqual((diagnosed, dead), (names[:MAX_DIAGNOSES], names))


if __name__ == "__main__":
    unittest.main()
