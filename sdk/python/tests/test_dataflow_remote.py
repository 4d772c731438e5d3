"""Jobs with worker processes and a real rendezvous. Longer ones: slow_dataflow_remote.py."""

import signal
import unittest
import unittest.mock

import jobs_remote as jobs
from cases import SignalledJobCase
from rendezvous_fixture import RemoteJobCase, CountedProcesses
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import _remote
from nearpath.dataflow._exit_cause import PERHAPS_MEMORY


class RemoteJobTests(RemoteJobCase):
    def test_reduce_by_key_gives_exact_sums(self):
        job = self.run_summing(5000, 50, pause=0.0, store=False)
        self.assertEqual(sum(job.report.paths.values()), 18)
        self.assertLessEqual(set(job.report.paths), {"punch", "relay"})
        self.assertEqual((job.report.restarts, len(self.place.starts)), ([], 8))
        self.assertEqual(self.running_workers(), ([], []))

    def test_a_remote_job_makes_checkpoints(self):
        job = self.run_summing(4000, 10)
        self.assertGreater(job.report.checkpoints, 1)

    def test_an_exception_ends_the_job_and_is_reported(self):
        with self.assertRaises(flow.JobFailed) as raised:
            self.run_job(jobs.raises_lookup_error, arguments={"count": 100})
        self.assertEqual(raised.exception.worker, "map.0")
        self.assertIn("LookupError: no such number", str(raised.exception))
        self.assertEqual(self.running_workers(), ([], []))

    def test_a_job_that_workers_cannot_import_is_refused(self):
        here = {"on": self.place, "rendezvous": self.rendezvous.url, "key": self.rendezvous.key}

        def inner():
            return jobs.summing(1, 1)

        for job, cause in [(inner, "top level of a module"), (lambda: None, "top level"), (jobs.summing(1, 1), "top level")]:
            with self.assertRaisesRegex(ValueError, cause):
                flow.run(job, **here)
        with self.assertRaisesRegex(ValueError, "as JSON"):
            flow.run(jobs.raises_lookup_error, arguments={"count": {1}}, **here)
        with self.assertRaisesRegex(ValueError, "need a function that makes the job, `rendezvous` and `key`"):
            flow.run(jobs.raises_lookup_error, on=self.place, arguments={"count": 1})
        with self.assertRaisesRegex(flow.JobFailed, "makes another graph here"):
            flow.run(jobs.changing_graph, arguments={"path": str(self.folder)}, **here)
        self.assertEqual(self.place.running_workers(), [])

    def test_a_missing_rendezvous_is_reported(self):
        with self.assertRaisesRegex(ConnectionError, "no rendezvous at ws://127.0.0.1:1 within 0.5 s"):
            self.run_job(jobs.raises_lookup_error, arguments={"count": 1}, rendezvous="ws://127.0.0.1:1", contact_timeout=0.5)
        with self.assertRaisesRegex(ConnectionError, "refuses the ticket: .* answers 401: invalid ticket"):
            self.run_job(jobs.raises_lookup_error, arguments={"count": 1}, key=bytes(32))
        self.assertEqual(self.place.starts, [])

    def test_a_worker_exits_by_itself_after_the_end_message(self):
        """The job waits for the exit, because a killed worker leaves its folder."""
        with unittest.mock.patch.object(_remote, "STOP_GRACE", float(DEADLINE)), self.assertRaises(flow.JobFailed):
            self.run_job(jobs.raises_lookup_error, arguments={"count": 100})
        self.assertNotIn(PERHAPS_MEMORY, [started.ended() for _, started in self.place.starts])


class RemoteDeathTests(RemoteJobCase):
    """One death of each kind. More: slow_dataflow_remote.py."""

    def test_only_the_dead_worker_is_restarted(self):
        """The others keep their processes."""
        job = self.run_summing(4000, 10, signals=[[3001, signal.SIGKILL]])
        self.assertEqual(len(job.report.restarts), 1)
        self.assertEqual(len(self.place.starts), 9)
        self.assertGreater(job.report.checkpoints, 0)
        self.assertEqual(self.running_workers(), ([], []))

    def test_a_failed_job_removes_the_folders_of_killed_workers(self):
        with self.assertRaisesRegex(flow.JobFailed, "gave up after 0 restarts"):
            self.run_summing(1000, 10, signals=[[500, signal.SIGKILL]], store=False, retries=0)
        self.assertEqual(self.running_workers(), ([], []))

    def test_a_worker_that_dies_at_its_start_is_restarted(self):
        self.place = CountedProcesses(before={"map.1": ["sh", "-c", "exit 7"]})
        job = self.run_summing(1000, 10, pause=0.0)
        self.assertIn("map.1 died (exit code 7)", job.report.restarts[0])

    def test_a_worker_that_dies_while_connecting_is_restarted(self):
        job = self.run_job(jobs.dies_at_start, arguments={"count": 1000, "folder": str(self.folder)})
        self.assertEqual(sorted(job.results), list(range(1000)))
        self.assertEqual(len(job.report.restarts), 1)


class TimeLimitTests(RemoteJobCase):
    def test_a_time_limit_without_checkpoints_is_reported(self):
        self.place.limit = 600.0
        with self.assertWarnsRegex(UserWarning, "workers at processes run for 600 s at most: .* needs `checkpoints`"):
            self.run_summing(1000, 10, pause=0.0, store=False)


class CancelledJobCase(RemoteJobCase, SignalledJobCase):
    """Runs jobs at two places. Workers of the detached place depend on messages of their job only."""

    JOB = r"""
        import subprocess, sys, jobs_remote
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

        class DetachedProcesses(flow.Place):
            def start(self, worker, orders):
                return Process(orders)

        _, pids, url, key, place, contact_timeout = sys.argv
        on = DetachedProcesses() if place == "detached" else flow.Processes()
        flow.run(jobs_remote.endless, on=on, rendezvous=url, key=key, contact_timeout=float(contact_timeout), arguments={"folder": pids})
    """

    def end_by(self, number, place="attached", contact_timeout=20.0):
        return self.exit_code_after(number, self.JOB, self.rendezvous.url, self.rendezvous.key, place, contact_timeout)


class RemoteCancellationTests(CancelledJobCase):
    """An ended job ends its workers."""

    def test_ctrl_c_ends_all_workers(self):
        self.assertEqual((self.end_by(signal.SIGINT), self.remaining_files()), (-signal.SIGINT, []))

    def test_sigterm_ends_all_workers(self):
        self.assertEqual((self.end_by(signal.SIGTERM), self.remaining_files()), (128 + signal.SIGTERM, []))

    def test_ctrl_c_ends_workers_without_a_parent_process(self):
        self.assertEqual((self.end_by(signal.SIGINT, "detached"), self.remaining_files()), (-signal.SIGINT, []))

    def test_sigkill_ends_all_workers(self):
        self.assertEqual(self.end_by(signal.SIGKILL), -signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
