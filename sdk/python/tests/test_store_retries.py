"""Retries and errors of checkpoints when requests to the object store fail, or the store dies."""

import json
import os
import threading
import unittest
import unittest.mock

from known_marks import LARGE, KnownMarksCase
from s3_server import ObjectStoreCase, FaultyProxy
from fixtures import DEADLINE

from nearpath.dataflow import _s3


class RetryTests(ObjectStoreCase, KnownMarksCase):
    """A proxy makes requests fail."""

    def setUp(self):
        super().setUp()
        self.proxy = FaultyProxy(self.server.endpoint)
        self.addCleanup(self.proxy.close)
        self.enterContext(unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="3"))
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0))
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_INTERVAL", 0.0))
        self.enterContext(unittest.mock.patch("botocore.endpoint.time"))  # its delays grow with each try
        self.kept = _s3.ObjectStore(self.url(self.proxy.endpoint))

    def make_checkpoint(self, number, state=b"state"):
        self.kept.complete(number, {"a": self.kept.save(number, "a", state)}, [])
        self.assertEqual(bytes(self.kept.load(number, "a")), state)

    def test_failed_requests_are_retried(self):
        for number, (fault, method) in enumerate([(500, "PUT"), (503, "PUT"), (503, "GET"), (500, "HEAD"), (503, "POST")], 1):
            with self.subTest(fault=fault, method=method):
                self.proxy.fail_next(2, fault, method)
                self.make_checkpoint(number)

    def test_an_operation_is_repeated_after_boto3_gave_up(self):
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", float(DEADLINE)))
        for number, method in enumerate(["PUT", "GET", "HEAD", "POST"], 1):
            with self.subTest(method=method):
                self.proxy.fail_next(4, 500, method)
                self.make_checkpoint(number)

    def test_repeated_failures_are_reported(self):
        self.proxy.fail_next(100, 503)
        for work in (lambda: self.kept.save(1, "a", b"state"), lambda: self.kept.complete(1, {}, []), self.kept.latest):
            with self.assertRaisesRegex(ConnectionError, "all tries failed .*: check that the store runs"):
                work()
        self.assertLess(len(self.proxy.requests), 12, "tries are limited")

    def test_a_completion_with_a_lost_response_is_repeated(self):
        self.proxy.fail_next(1, "lose", "PUT", "complete")
        self.make_checkpoint(1)
        self.assertEqual(sum(path.endswith("complete") and method == "PUT" for method, path in self.proxy.requests), 2)

    def test_a_conflicting_completion_is_retried(self):
        self.proxy.fail_next(3, 409, "PUT", "complete")
        self.make_checkpoint(1)
        self.proxy.fail_next(100, 409, "PUT", "complete")
        with self.assertRaises(ConnectionError):
            self.kept.complete(2, {}, ["a"])

    def test_a_store_without_conditional_writes_is_usable(self):
        self.proxy.fail_next(100, 501, "PUT", "complete")
        with self.assertRaisesRegex(OSError, "NotImplemented"):
            self.kept.complete(1, {}, ["a"])  # unconditional writes fail, too
        self.proxy.fail_next(1, 501, "PUT", "complete")
        self.make_checkpoint(1)
        self.proxy.fail_next(1, 501, "PUT", "complete")
        with self.assertRaises(FileExistsError):
            self.kept.complete(1, {}, ["another run"])

    def test_a_truncated_response_is_repeated(self):
        self.make_checkpoint(1, LARGE)
        self.proxy.fail_next(1, "cut", "GET", "a.mark0")
        self.assertEqual(bytes(self.kept.load(1, "a")), LARGE)

    def test_remaining_old_checkpoints_are_removed_later(self):
        self.make_checkpoint(1)
        self.proxy.fail_next(3, 503, "POST", "delete")
        self.make_checkpoint(2)
        self.assertEqual(json.loads(self.kept.latest())["number"], 2)
        self.make_checkpoint(3)
        self.assertEqual(len([name for name in self.server.objects() if name.startswith(self.id())]), 2)

    def test_a_silent_store_is_reported(self):
        self.enterContext(unittest.mock.patch.object(_s3, "READ_TIMEOUT", 0.2))
        done = threading.Event()
        self.addCleanup(done.set)
        self.proxy.fail_next(100, lambda: done.wait(DEADLINE) and None)
        with self.assertRaisesRegex(ConnectionError, "Read timeout"):
            self.kept.save(1, "a", b"state")

    def test_a_slow_store_is_usable(self):
        pause = threading.Event()
        self.proxy.rule = lambda method, path: pause.wait(0.1) or None
        self.make_checkpoint(1, LARGE)

    def test_a_refused_connection_is_reported(self):
        gone = FaultyProxy(self.server.endpoint)
        gone.close()
        with self.assertRaisesRegex(ConnectionError, "Could not connect"):
            _s3.ObjectStore(self.url(gone.endpoint)).latest()

    def test_a_refused_request_names_the_missing_permission(self):
        self.proxy.fail_next(1, 403, "PUT")
        with self.assertRaisesRegex(PermissionError, "cannot be written, the request was refused .*: ask the bucket's owner for s3:ListBucket"):
            self.kept.save(1, "a", b"state")

    def test_wrong_keys_are_reported(self):
        for wrong in ({"AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_ACCESS_KEY_ID": "wrong"}):
            with unittest.mock.patch.dict(os.environ, wrong), self.assertRaisesRegex(PermissionError, "does not accept the credentials"):
                _s3.ObjectStore(self.url()).latest()

    def test_missing_keys_are_reported(self):
        with unittest.mock.patch.dict(os.environ):
            del os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
            with self.assertRaisesRegex(PermissionError, "there are no credentials"):
                _s3.ObjectStore(self.url()).latest()

    def test_a_missing_bucket_is_reported(self):
        missing = _s3.ObjectStore(self.url(bucket="missing-bucket"))
        for work in (missing.latest, lambda: missing.save(1, "a", b""), lambda: missing.save(1, "a", LARGE), lambda: missing.complete(1, {}, [])):
            with self.assertRaisesRegex(FileNotFoundError, "no such bucket: create it, or correct the name"):
                work()


class KilledStoreTests(ObjectStoreCase, KnownMarksCase):
    """The server dies during a save of a large state."""

    def setUp(self):
        super().setUp()
        self.proxy = FaultyProxy(self.server.endpoint)
        self.addCleanup(self.proxy.close)

    def test_a_complete_checkpoint_survives_a_kill(self):
        kept = _s3.ObjectStore(self.url(self.proxy.endpoint))
        kept.complete(1, {"a": kept.save(1, "a", LARGE)}, [])
        with unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="2"), unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0):
            killed = _s3.ObjectStore(self.url(self.proxy.endpoint))
            self.proxy.fail_next(1, self.server.kill, "PUT", "partNumber=2")
            with self.assertRaises(ConnectionError):
                killed.save(2, "a", LARGE)
        type(self).server = self.server.restart()
        self.assertEqual(json.loads(kept.latest())["number"], 1)
        self.assertEqual(bytes(kept.load(1, "a")), LARGE)
        kept.complete(2, {"a": kept.save(2, "a", LARGE[1:])}, [])
        self.assertEqual(bytes(kept.load(2, "a")), LARGE[1:])

    def test_a_save_survives_a_restart_of_the_store(self):
        kept = _s3.ObjectStore(self.url(self.proxy.endpoint))

        def restart():
            self.server.kill()
            type(self).server = self.server.restart()

        self.proxy.fail_next(1, restart, "PUT", "partNumber=2")
        kept.complete(1, {"a": kept.save(1, "a", LARGE)}, [])
        self.assertEqual(bytes(kept.load(1, "a")), LARGE)


if __name__ == "__main__":
    unittest.main()
