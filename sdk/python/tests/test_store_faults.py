"""What a store refuses in a good answer, what does not belong in its address, and jobs whose store is away or does not answer."""

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

import jobs_elsewhere as jobs
from s3_server import ObjectStoreCase, FaultyProxy
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import _s3
from nearpath.dataflow._s3_errors import explain, translated_errors
from nearpath.dataflow._store import store

HERE = os.path.dirname(os.path.abspath(__file__))
REFUSED = """<?xml version="1.0" encoding="UTF-8"?>
<DeleteResult><Error><Key>a</Key><Code>%s</Code><Message>said by the test</Message></Error></DeleteResult>"""


class Beside(ObjectStoreCase):
    def setUp(self):
        signal.alarm(2 * DEADLINE)
        self.addCleanup(signal.alarm, 0)
        self.between = FaultyProxy(self.server.endpoint)
        self.addCleanup(self.between.close)
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def objects(self):
        return [name for name in self.server.objects() if name.startswith(self.id())]

    def without_retries(self):
        """Each request is tried once."""
        self.enterContext(unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="1"))
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0))


class Removal(Beside):
    """A store that does not remove says so for each object, in an answer that is a good one as a whole."""

    def refusing(self, code):
        ask = self.between.ask

        def instead(method, path, headers, body):
            if method == "POST" and "delete" in path:
                answer = (REFUSED % code).encode()
                return 200, [("Content-Length", str(len(answer)))], answer
            return ask(method, path, headers, body)

        self.between.ask = instead
        return store(self.url(self.between.endpoint))

    def test_what_may_not_be_removed_is_told(self):
        kept = self.refusing("AccessDenied")
        kept.complete(1, {"a": kept.save(1, "a", b"one")}, [])
        with self.assertRaisesRegex(PermissionError, "was to have objects removed.*AccessDenied.*s3:DeleteObject"):
            kept.complete(2, {"a": kept.save(2, "a", b"two")}, [])
        with self.assertRaisesRegex(PermissionError, "s3:DeleteObject"):
            kept.clear()

    def test_a_busy_store_removes_them_the_next_time(self):
        self.without_retries()
        kept = self.refusing("SlowDown")
        for number in (1, 2):
            kept.complete(number, {"a": kept.save(number, "a", b"state")}, [])
        with self.assertRaises(ConnectionError):
            kept.clear()
        kept = store(self.url())
        kept.complete(3, {"a": kept.save(3, "a", b"state")}, [])
        self.assertEqual({name.split("/")[1] for name in self.objects()}, {"00000003"})

    def test_a_job_that_is_through_says_what_stays(self):
        self.refusing("AccessDenied")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            flow.run(jobs.summing(10, 2, self.folder), checkpoints=self.url(self.between.endpoint), every=0.0, folder=self.folder)
        self.assertRegex(str(said[-1].message) if said else "", "its checkpoints stay: .*s3:DeleteObject")


class Away(Beside):
    def test_a_store_that_is_away_between_two_attempts_costs_one_more(self):
        """The list of checkpoint 2 cannot be written, and then nobody can be asked where to go on."""
        self.without_retries()
        fails = [("PUT", "00000002/complete"), ("GET", "list-type"), ("GET", "list-type")]

        def rule(method, path):
            if fails and method == fails[0][0] and fails[0][1] in path and (len(fails) < 3 or method == "PUT"):
                fails.pop(0)
                return 503
            return None

        self.between.rule = rule
        done = flow.run(jobs.summing(4000, 10, self.folder, 0.0005), checkpoints=self.url(self.between.endpoint), every=0.2)
        self.assertEqual(dict(done.results), jobs.sums(4000, 10))
        self.assertEqual((fails, len(done.report.restarts)), ([], 3), done.report.restarts)
        self.assertRegex(done.report.restarts[1], "the last checkpoint .*no good answer came")

    def test_one_that_was_never_there_is_told_at_once(self):
        self.without_retries()
        self.between.times(1, 503, "GET", "list-type")
        with self.assertRaisesRegex(ConnectionError, "see whether the store runs"):
            flow.run(jobs.summing(10, 2, self.folder), checkpoints=self.url(self.between.endpoint))

    def test_who_is_cancelled_does_not_wait_for_it(self):
        """A list that the store takes, and does not answer."""
        here, let_go = threading.Event(), threading.Event()
        self.addCleanup(let_go.set)

        def hold():
            here.set()
            let_go.wait(DEADLINE)

        self.between.times(1000, hold, "PUT", "/complete")
        program = textwrap.dedent("""
            import sys, jobs_elsewhere
            from nearpath import dataflow as flow
            flow.run(jobs_elsewhere.summing(1 << 30, 10, sys.argv[1], 0.0005), checkpoints=sys.argv[2], every=0.2)
        """)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join([HERE, *sys.path]))
        words = [sys.executable, "-c", program, self.folder, self.url(self.between.endpoint)]
        leader = subprocess.Popen(words, env=environment)
        self.addCleanup(leader.wait)
        self.addCleanup(leader.kill)
        self.assertTrue(here.wait(DEADLINE))
        leader.terminate()
        self.assertEqual(leader.wait(20), 128 + signal.SIGTERM)  # each of its tries may take half a minute


class Words(Beside):
    def error(self, code):
        import botocore.exceptions

        return botocore.exceptions.ClientError({"Error": {"Code": code, "Message": "no"}}, "PutObject")

    def test_a_clock_that_is_wrong(self):
        why = str(explain(self.error("RequestTimeTooSkewed"), "s3://bucket/a", "to be written"))
        self.assertRegex(why, "clocks .* differ")
        self.assertNotIn("credentials", why)

    def test_a_store_that_redirects_elsewhere(self):
        with self.assertRaisesRegex(ValueError, "redirects elsewhere: correct its endpoint"), translated_errors("s3://bucket", "to be read"):
            raise RecursionError("as botocore does")

    def test_prefixes_with_odd_characters(self):
        for prefix in ("ü n+ic%20o~&d'\"/€", "a//b", "a/", "/a"):
            with self.subTest(prefix):
                url = f"s3://nearpath/{self.id()}/{prefix}/x?endpoint={self.server.endpoint}"
                kept = store(url)
                kept.complete(1, {"a": kept.save(1, "a", b"one")}, [])
                self.assertEqual(bytes(_s3.ObjectStore(url).load(1, "a")), b"one")
                kept.clear()
                self.assertEqual(self.objects(), [])

    def test_those_of_jobs_that_are_over_do_not_add_up(self):
        """Each has a client of boto3's: some ten megabytes, and a connection."""
        stores = [weakref.ref(store(f"s3://nearpath/{self.id()}-{number}")) for number in range(6)]
        gc.collect()
        self.assertLessEqual(sum(one() is not None for one in stores), 2)

    def test_what_no_address_has(self):
        for url, why in {
            "s3://bucket/a?endpoint=https://me:secret@host": "credentials do not belong in the endpoint",
            "s3://bucket/a?endpoint=https://": "begins with https://",
            "s3://bucket/../a": "no \\. and no \\.\\.",
        }.items():
            with self.subTest(url), self.assertRaisesRegex(ValueError, why) as raised:
                store(url)
            self.assertNotIn("secret", str(raised.exception))


if __name__ == "__main__":
    unittest.main()
