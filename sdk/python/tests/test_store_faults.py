"""Refusals within successful responses, invalid URLs, and jobs with an unreachable store."""

import gc
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import unittest.mock
import warnings
import weakref

import jobs_remote as jobs
from s3_server import ObjectStoreCase, FaultyProxy
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import _s3
from nearpath.dataflow._s3_errors import explain, translated_errors
from nearpath.dataflow._store import store

HERE = os.path.dirname(os.path.abspath(__file__))
REFUSED = """<?xml version="1.0" encoding="UTF-8"?>
<DeleteResult><Error><Key>a</Key><Code>%s</Code><Message>made by the test</Message></Error></DeleteResult>"""


class FaultyStoreCase(ObjectStoreCase):
    def setUp(self):
        signal.alarm(2 * DEADLINE)
        self.addCleanup(signal.alarm, 0)
        self.proxy = FaultyProxy(self.server.endpoint)
        self.addCleanup(self.proxy.close)
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def objects(self):
        return [name for name in self.server.objects() if name.startswith(self.id())]

    def without_retries(self):
        """Permits one try per request."""
        self.enterContext(unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="1"))
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0))


class RemovalTests(FaultyStoreCase):
    """A store refuses the removal of single objects within a successful response."""

    def store_refusing(self, code):
        ask = self.proxy.forward

        def refuse(method, path, headers, body):
            if method == "POST" and "delete" in path:
                answer = (REFUSED % code).encode()
                return 200, [("Content-Length", str(len(answer)))], answer
            return ask(method, path, headers, body)

        self.proxy.forward = refuse
        return store(self.url(self.proxy.endpoint))

    def test_a_refused_removal_is_reported(self):
        kept = self.store_refusing("AccessDenied")
        kept.complete(1, {"a": kept.save(1, "a", b"one")}, [])
        with self.assertRaisesRegex(PermissionError, "cannot remove objects.*AccessDenied.*s3:DeleteObject"):
            kept.complete(2, {"a": kept.save(2, "a", b"two")}, [])
        with self.assertRaisesRegex(PermissionError, "s3:DeleteObject"):
            kept.clear()

    def test_a_failed_removal_is_repeated_at_the_next_checkpoint(self):
        self.without_retries()
        kept = self.store_refusing("SlowDown")
        for number in (1, 2):
            kept.complete(number, {"a": kept.save(number, "a", b"state")}, [])
        with self.assertRaises(ConnectionError):
            kept.clear()
        kept = store(self.url())
        kept.complete(3, {"a": kept.save(3, "a", b"state")}, [])
        self.assertEqual({name.split("/")[1] for name in self.objects()}, {"00000003"})

    def test_a_finished_job_reports_remaining_checkpoints(self):
        self.store_refusing("AccessDenied")
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            flow.run(jobs.summing(10, 2, self.folder), checkpoints=self.url(self.proxy.endpoint), checkpoint_interval=0.0, folder=self.folder)
        self.assertRegex(str(warned[-1].message) if warned else "", "its checkpoints stay: .*s3:DeleteObject")


class UnreachableStoreTests(FaultyStoreCase):
    def test_an_unreachable_store_between_two_attempts_costs_one_restart(self):
        """The manifest of checkpoint 2 cannot be written, and then the store cannot be read."""
        self.without_retries()
        fails = [("PUT", "00000002/complete"), ("GET", "list-type"), ("GET", "list-type")]

        def rule(method, path):
            if fails and method == fails[0][0] and fails[0][1] in path and (len(fails) < 3 or method == "PUT"):
                fails.pop(0)
                return 503
            return None

        self.proxy.rule = rule
        done = flow.run(jobs.summing(4000, 10, self.folder, 0.0005), checkpoints=self.url(self.proxy.endpoint), checkpoint_interval=0.2)
        self.assertEqual(dict(done.results), jobs.sums(4000, 10))
        self.assertEqual((fails, len(done.report.restarts)), ([], 3), done.report.restarts)
        self.assertRegex(done.report.restarts[1], "the last checkpoint .*all tries failed")

    def test_a_store_that_never_answered_is_reported_at_once(self):
        self.without_retries()
        self.proxy.fail_next(1, 503, "GET", "list-type")
        with self.assertRaisesRegex(ConnectionError, "check that the store runs"):
            flow.run(jobs.summing(10, 2, self.folder), checkpoints=self.url(self.proxy.endpoint))

    def test_a_cancelled_job_does_not_wait_for_the_store(self):
        """The store receives a manifest and does not respond."""
        received, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def hold():
            received.set()
            release.wait(DEADLINE)

        self.proxy.fail_next(1000, hold, "PUT", "/complete")
        program = textwrap.dedent("""
            import sys, jobs_remote
            from nearpath import dataflow as flow
            flow.run(jobs_remote.summing(1 << 30, 10, sys.argv[1], 0.0005), checkpoints=sys.argv[2], checkpoint_interval=0.2)
        """)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([HERE, *sys.path]))
        command = [sys.executable, "-c", program, self.folder, self.url(self.proxy.endpoint)]
        leader = subprocess.Popen(command, env=environment)
        self.addCleanup(leader.wait)
        self.addCleanup(leader.kill)
        self.assertTrue(received.wait(DEADLINE))
        leader.terminate()
        self.assertEqual(leader.wait(20), 128 + signal.SIGTERM)  # each try may take half a minute


class StoreErrorTests(FaultyStoreCase):
    def error(self, code):
        import botocore.exceptions

        return botocore.exceptions.ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")

    def test_a_wrong_clock_is_reported(self):
        why = str(explain(self.error("RequestTimeTooSkewed"), "s3://bucket/a", "be written"))
        self.assertRegex(why, "clocks .* differ")
        self.assertNotIn("credentials", why)

    def test_a_redirect_loop_is_reported(self):
        with self.assertRaisesRegex(ValueError, "redirects in a loop: correct its endpoint"), translated_errors("s3://bucket", "be read"):
            raise RecursionError("as botocore does")

    def test_special_characters_in_prefixes_are_accepted(self):
        for prefix in ("ü n+ic%20o~&d'\"/€", "a//b", "a/", "/a"):
            with self.subTest(prefix):
                url = f"s3://nearpath/{self.id()}/{prefix}/x?endpoint={self.server.endpoint}"
                kept = store(url)
                kept.complete(1, {"a": kept.save(1, "a", b"one")}, [])
                self.assertEqual(bytes(_s3.ObjectStore(url).load(1, "a")), b"one")
                kept.clear()
                self.assertEqual(self.objects(), [])

    def test_stores_of_finished_jobs_are_released(self):
        """Each has a client of boto3 with about ten megabytes and a connection."""
        stores = [weakref.ref(store(f"s3://nearpath/{self.id()}-{number}")) for number in range(6)]
        gc.collect()
        self.assertLessEqual(sum(one() is not None for one in stores), 2)

    def test_an_invalid_store_url_is_refused(self):
        for url, why in {
            "s3://bucket/a?endpoint=https://me:secret@host": "credentials do not belong in the endpoint",
            "s3://bucket/a?endpoint=https://": "expected https://",
            "s3://bucket/../a": "invalid prefix",
        }.items():
            with self.subTest(url), self.assertRaisesRegex(ValueError, why) as raised:
                store(url)
            self.assertNotIn("secret", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
