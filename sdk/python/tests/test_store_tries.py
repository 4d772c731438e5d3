"""What becomes of checkpoints when requests to their object store fail, and when it dies: what is tried again, and what is told."""

import json
import os
import threading
import unittest
import unittest.mock

from known_marks import LARGE, Marked
from s3_server import ObjectStoreCase, FaultyProxy
from fixtures import DEADLINE

from nearpath.dataflow import _s3


class Faults(ObjectStoreCase, Marked):
    """Somebody between lets requests fail."""

    def setUp(self):
        super().setUp()
        self.between = FaultyProxy(self.server.endpoint)
        self.addCleanup(self.between.close)
        self.enterContext(unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="3"))
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0))
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_INTERVAL", 0.0))
        self.enterContext(unittest.mock.patch("botocore.endpoint.time"))  # it sleeps longer before each try
        self.kept = _s3.ObjectStore(self.url(self.between.endpoint))

    def round(self, number, state=b"state"):
        self.kept.complete(number, {"a": self.kept.save(number, "a", state)}, [])
        self.assertEqual(bytes(self.kept.load(number, "a")), state)

    def test_some_failures_are_tried_again(self):
        for number, (said, method) in enumerate([(500, "PUT"), (503, "PUT"), (503, "GET"), (500, "HEAD"), (503, "POST")], 1):
            with self.subTest(said=said, method=method):
                self.between.times(2, said, method)
                self.round(number)

    def test_what_boto3_gives_up_is_done_once_more(self):
        self.enterContext(unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", float(DEADLINE)))
        for number, method in enumerate(["PUT", "GET", "HEAD", "POST"], 1):
            with self.subTest(method=method):
                self.between.times(4, 500, method)
                self.round(number)

    def test_many_failures_are_told(self):
        self.between.times(100, 503)
        for work in (lambda: self.kept.save(1, "a", b"state"), lambda: self.kept.complete(1, {}, []), self.kept.latest):
            with self.assertRaisesRegex(ConnectionError, "no good answer came though it was tried several times .*: see whether the store runs"):
                work()
        self.assertLess(len(self.between.asked), 12, "tries are bounded")

    def test_a_completion_whose_answer_is_lost(self):
        self.between.times(1, "lose", "PUT", "complete")
        self.round(1)
        self.assertEqual(sum(path.endswith("complete") and method == "PUT" for method, path in self.between.asked), 2)

    def test_a_completion_beside_another(self):
        self.between.times(3, 409, "PUT", "complete")
        self.round(1)
        self.between.times(100, 409, "PUT", "complete")
        with self.assertRaises(ConnectionError):
            self.kept.complete(2, {}, ["a"])

    def test_a_store_without_conditional_writes(self):
        self.between.times(100, 501, "PUT", "complete")
        with self.assertRaisesRegex(OSError, "NotImplemented"):
            self.kept.complete(1, {}, ["a"])  # not even a plain one
        self.between.times(1, 501, "PUT", "complete")
        self.round(1)
        self.between.times(1, 501, "PUT", "complete")
        with self.assertRaises(FileExistsError):
            self.kept.complete(1, {}, ["somebody else"])

    def test_half_an_answer(self):
        self.round(1, LARGE)
        self.between.times(1, "cut", "GET", "a.mark0")
        self.assertEqual(bytes(self.kept.load(1, "a")), LARGE)

    def test_old_checkpoints_that_stay_do_no_harm(self):
        self.round(1)
        self.between.times(3, 503, "POST", "delete")
        self.round(2)
        self.assertEqual(json.loads(self.kept.latest())["number"], 2)
        self.round(3)
        self.assertEqual(len([name for name in self.server.objects() if name.startswith(self.id())]), 2)

    def test_a_store_that_never_answers(self):
        self.enterContext(unittest.mock.patch.object(_s3, "READ_TIMEOUT", 0.2))
        done = threading.Event()
        self.addCleanup(done.set)
        self.between.times(100, lambda: done.wait(DEADLINE) and None)
        with self.assertRaisesRegex(ConnectionError, "Read timeout"):
            self.kept.save(1, "a", b"state")

    def test_a_slow_store(self):
        pause = threading.Event()
        self.between.rule = lambda method, path: pause.wait(0.1) or None
        self.round(1, LARGE)

    def test_nobody_there(self):
        gone = FaultyProxy(self.server.endpoint)
        gone.close()
        with self.assertRaisesRegex(ConnectionError, "Could not connect"):
            _s3.ObjectStore(self.url(gone.endpoint)).latest()

    def test_what_is_not_allowed_names_who_can_allow_it(self):
        self.between.times(1, 403, "PUT")
        with self.assertRaisesRegex(PermissionError, "was to be written, and that was refused .*: ask the bucket's owner for s3:ListBucket"):
            self.kept.save(1, "a", b"state")

    def test_wrong_keys(self):
        for wrong in ({"AWS_SECRET_ACCESS_KEY": "wrong"}, {"AWS_ACCESS_KEY_ID": "wrong"}):
            with unittest.mock.patch.dict(os.environ, wrong), self.assertRaisesRegex(PermissionError, "does not accept the credentials"):
                _s3.ObjectStore(self.url()).latest()

    def test_no_keys(self):
        with unittest.mock.patch.dict(os.environ):
            del os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
            with self.assertRaisesRegex(PermissionError, "there are no credentials"):
                _s3.ObjectStore(self.url()).latest()

    def test_no_bucket(self):
        missing = _s3.ObjectStore(self.url(bucket="nobodys"))
        for work in (missing.latest, lambda: missing.save(1, "a", b""), lambda: missing.save(1, "a", LARGE), lambda: missing.complete(1, {}, [])):
            with self.assertRaisesRegex(FileNotFoundError, "no such bucket: make it, or correct the name"):
                work()


class Killed(ObjectStoreCase, Marked):
    """The server dies in the midst of a large state."""

    def setUp(self):
        super().setUp()
        self.between = FaultyProxy(self.server.endpoint)
        self.addCleanup(self.between.close)

    def test_what_was_complete_stays(self):
        kept = _s3.ObjectStore(self.url(self.between.endpoint))
        kept.complete(1, {"a": kept.save(1, "a", LARGE)}, [])
        with unittest.mock.patch.dict(os.environ, AWS_MAX_ATTEMPTS="2"), unittest.mock.patch.object(_s3, "RETRY_TIMEOUT", 0.0):
            killed = _s3.ObjectStore(self.url(self.between.endpoint))
            self.between.times(1, self.server.kill, "PUT", "partNumber=2")
            with self.assertRaises(ConnectionError):
                killed.save(2, "a", LARGE)
        type(self).server = self.server.again()
        self.assertEqual(json.loads(kept.latest())["number"], 1)
        self.assertEqual(bytes(kept.load(1, "a")), LARGE)
        kept.complete(2, {"a": kept.save(2, "a", LARGE[1:])}, [])
        self.assertEqual(bytes(kept.load(2, "a")), LARGE[1:])

    def test_a_save_that_outlives_a_restart(self):
        kept = _s3.ObjectStore(self.url(self.between.endpoint))

        def restart():
            self.server.kill()
            type(self).server = self.server.again()

        self.between.times(1, restart, "PUT", "partNumber=2")
        kept.complete(1, {"a": kept.save(1, "a", LARGE)}, [])
        self.assertEqual(bytes(kept.load(1, "a")), LARGE)


if __name__ == "__main__":
    unittest.main()
