"""Jobs whose workers are processes of their own that meet at a real rendezvous. Those that take longer: slow_dataflow_elsewhere.py."""

import signal
import unittest
import unittest.mock

import jobs_elsewhere as jobs
from cases import EndedBySignal
from rendezvous_fixture import Elsewhere, CountedProcesses
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import _remote


class Jobs(Elsewhere):
    def test_reduce_by_key(self):
        job = self.summing(5000, 50, pause=0.0, store=False)
        self.assertEqual(sum(job.report.paths.values()), 18)
        self.assertLessEqual(set(job.report.paths), {"punch", "relay"})
        self.assertEqual((job.report.restarts, len(self.place.starts)), ([], 8))
        self.assertEqual(self.running_workers(), ([], []))

    def test_checkpoints_are_made(self):
        job = self.summing(4000, 10)
        self.assertGreater(job.report.checkpoints, 1)

    def test_an_exception_ends_the_job_and_is_told(self):
        with self.assertRaises(flow.JobFailed) as raised:
            self.run_job(jobs.wrong, arguments={"count": 100})
        self.assertEqual(raised.exception.worker, "map.0")
        self.assertIn("LookupError: no such number", str(raised.exception))
        self.assertEqual(self.running_workers(), ([], []))

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
        self.assertEqual(self.place.running_workers(), [])

    def test_no_rendezvous(self):
        with self.assertRaisesRegex(ConnectionError, "no rendezvous at ws://127.0.0.1:1 within 0.5 s"):
            self.run_job(jobs.wrong, arguments={"count": 1}, rendezvous="ws://127.0.0.1:1", patience=0.5)
        with self.assertRaisesRegex(ConnectionError, "refuses the ticket: .* answers 401: invalid ticket"):
            self.run_job(jobs.wrong, arguments={"count": 1}, key=bytes(32))
        self.assertEqual(self.place.starts, [])

    def test_who_is_told_to_end_ends_by_itself(self):
        """The job waits for that, and no longer: a worker that is killed cannot clear away."""
        with unittest.mock.patch.object(_remote, "STOP_GRACE", float(DEADLINE)), self.assertRaises(flow.JobFailed):
            self.run_job(jobs.wrong, arguments={"count": 100})
        self.assertNotIn("signal 9", [started.ended() for _, started in self.place.starts])


class Deaths(Elsewhere):
    """Of each kind one. All that there are: slow_dataflow_elsewhere.py."""

    def test_only_the_dead_one_is_started_anew(self):
        """The others go on in their processes."""
        job = self.summing(4000, 10, hits=[[3001, signal.SIGKILL]])
        self.assertEqual(len(job.report.restarts), 1)
        self.assertEqual(len(self.place.starts), 9)
        self.assertGreater(job.report.checkpoints, 0)
        self.assertEqual(self.running_workers(), ([], []))

    def test_the_job_removes_what_the_last_one_has_left(self):
        with self.assertRaisesRegex(flow.JobFailed, "gave up after 0 restarts"):
            self.summing(1000, 10, hits=[[500, signal.SIGKILL]], store=False, retries=0)
        self.assertEqual(self.running_workers(), ([], []))

    def test_at_the_start(self):
        self.place = CountedProcesses(before={"map.1": ["sh", "-c", "exit 7"]})
        job = self.summing(1000, 10, pause=0.0)
        self.assertIn("map.1 died (exit code 7)", job.report.restarts[0])

    def test_while_connecting(self):
        job = self.run_job(jobs.dying_early, arguments={"count": 1000, "folder": str(self.folder)})
        self.assertEqual(sorted(job.results), list(range(1000)))
        self.assertEqual(len(job.report.restarts), 1)


class Renewals(Elsewhere):
    def test_no_store_is_told(self):
        self.place.limit = 600.0
        with self.assertWarnsRegex(UserWarning, "workers at processes run for 600 s at most: .* needs `checkpoints`"):
            self.summing(1000, 10, pause=0.0, store=False)


class Ended(Elsewhere, EndedBySignal):
    """Jobs whose place is near or far away: there nothing ties workers to their job but what they hear."""

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
                return Process(orders)

        _, pids, url, key, place, patience = sys.argv
        on = Far() if place == "far" else flow.Processes()
        flow.run(jobs_elsewhere.forever, on=on, rendezvous=url, key=key, patience=float(patience), arguments={"folder": pids})
    """

    def end_by(self, number, place="near", patience=20.0):
        return self.ended_by(number, self.JOB, self.rendezvous.url, self.rendezvous.key, place, patience)


class Cancelled(Ended):
    """Whatever ends a job, its workers end, too."""

    def test_by_ctrl_c(self):
        self.assertEqual((self.end_by(signal.SIGINT), self.left()), (-signal.SIGINT, []))

    def test_by_sigterm(self):
        self.assertEqual((self.end_by(signal.SIGTERM), self.left()), (128 + signal.SIGTERM, []))

    def test_by_ctrl_c_far_away(self):
        self.assertEqual((self.end_by(signal.SIGINT, "far"), self.left()), (-signal.SIGINT, []))

    def test_by_sigkill(self):
        self.assertEqual(self.end_by(signal.SIGKILL), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
