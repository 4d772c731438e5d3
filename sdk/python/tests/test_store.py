"""Checkpoints in a folder and in an object store have the same guarantees. Failing stores: test_store_retries.py."""

import contextlib
import json
import pathlib
import resource
import sys
import tempfile
import threading
import unittest
import unittest.mock

from known_marks import LARGE, KnownMarksCase
from s3_server import ObjectStoreCase
from fixtures import DEADLINE, run_in_child

from nearpath.dataflow import _s3
from nearpath.dataflow._store import below, store


class StoreCases:
    """Guarantees of each store. `open()` returns another object for the same place, `files()` and `write()` bypass it."""

    def completed(self, number, **states):
        kept = self.open()
        kept.complete(number, {worker: kept.save(number, worker, state) for worker, state in states.items()}, [])
        return kept

    def manifest(self):
        return json.loads(self.open().latest())

    def test_a_saved_state_can_be_loaded(self):
        kept = self.completed(1, a=b"one", b=b"")
        self.assertEqual((bytes(kept.load(1, "a")), bytes(kept.load(1, "b"))), (b"one", b""))
        self.assertEqual(bytes(self.open().load(1, "a")), b"one")

    def test_only_complete_checkpoints_count(self):
        kept = self.open()
        self.assertIsNone(kept.latest())
        kept.save(1, "a", b"one")
        self.assertIsNone(self.open().latest())
        with self.assertRaises(FileNotFoundError):
            kept.load(1, "a")
        self.completed(1, a=b"one")
        kept.save(2, "a", b"two")
        self.assertEqual(self.manifest()["number"], 1)

    def test_older_checkpoints_are_removed(self):
        for number in range(1, 4):
            kept = self.completed(number, a=b"%d" % number)
        self.assertEqual(self.files(), ["00000003/a.mark2.state", "00000003/complete"])
        with self.assertRaises(FileNotFoundError):
            kept.load(2, "a")

    def test_the_highest_number_is_the_latest_checkpoint(self):
        self.completed(99_999_999, a=b"one")
        self.completed(100_000_000, a=b"two")
        self.assertEqual(self.manifest(), {"number": 100_000_000, "states": {"a": "mark1"}, "finished": []})

    def test_a_finished_worker_has_no_state(self):
        kept = self.open()
        kept.complete(1, {}, ["a", "b"])
        self.assertEqual(self.manifest(), {"number": 1, "states": {}, "finished": ["a", "b"]})
        with self.assertRaisesRegex(FileNotFoundError, "has no state of a"):
            kept.load(1, "a")

    def test_a_late_save_does_not_count(self):
        """A presumed dead worker saves its state for a checkpoint of its successor."""
        dead, kept = self.open(), self.open()
        mark = kept.save(1, "a", b"new")
        dead.save(1, "a", b"old")
        kept.complete(1, {"a": mark}, [])
        dead.save(1, "a", b"older")
        self.assertEqual(bytes(self.open().load(1, "a")), b"new")
        self.completed(2, a=b"next")
        dead.save(1, "a", b"oldest")
        self.assertEqual(self.manifest()["number"], 2)
        self.completed(3, a=b"last")
        self.assertEqual(len(self.files()), 2, "the next checkpoint removes late states")

    def test_only_one_of_two_runs_continues(self):
        first, second = self.open(), self.open()
        marks = [{"a": run.save(2, "a", b"state")} for run in (first, second)]
        first.complete(2, marks[0], [])
        first.complete(2, marks[0], [])  # repeated after a lost response
        with self.assertRaisesRegex(FileExistsError, "another run of this job has completed checkpoint 2"):
            second.complete(2, marks[1], [])
        with self.assertRaisesRegex(FileExistsError, "has completed checkpoint 2"):
            second.complete(1, marks[1], [])
        self.assertEqual(self.manifest()["states"], marks[0])

    def test_only_one_of_many_concurrent_runs_continues(self):
        winners, barrier = [], threading.Barrier(8)

        def complete(name):
            kept = self.open()
            mark = kept.save(1, "a", name.encode())
            barrier.wait(DEADLINE)
            with contextlib.suppress(FileExistsError):
                kept.complete(1, {"a": mark}, [])
                winners.append(name)

        threads = [threading.Thread(target=complete, args=(f"run {number}",)) for number in range(8)]
        [thread.start() for thread in threads], [thread.join() for thread in threads]
        self.assertEqual(len(winners), 1)
        self.assertEqual(bytes(self.open().load(1, "a")).decode(), winners[0])

    def test_damage_is_reported(self):
        kept = self.completed(1, a=b"something")
        for bad in (b"nearpath state 1\n\0\0\0\0something", b"short", b"", b"nearpath state 2\n" + self.read("00000001/a.mark0.state")[17:]):
            self.write("00000001/a.mark0.state", bad)
            with self.assertRaisesRegex(OSError, "is damaged: remove the checkpoint 1"):
                kept.load(1, "a")
        self.write("00000001/complete", b'{"number"')
        with self.assertRaisesRegex(OSError, "is damaged: remove the checkpoint 1"):
            kept.latest()

    def test_names_and_bytes_follow_the_contract(self):
        """contract/dataflow.md"""
        self.open().complete(7, {"b": "mark9", "a.0": self.open().save(7, "a.0", b"123456789")}, ["c"])
        self.assertEqual(self.files(), ["00000007/a.0.mark0.state", "00000007/complete"])
        self.assertEqual(self.read("00000007/a.0.mark0.state"), b"nearpath state 1\n\x26\x39\xf4\xcb123456789")
        self.assertEqual(self.read("00000007/complete"), b'{"number":7,"states":{"a.0":"mark0","b":"mark9"},"finished":["c"]}')

    def test_large_states_are_saved(self):
        self.assertEqual(bytes(self.completed(1, a=LARGE).load(1, "a")), LARGE)

    def test_a_forked_child_uses_the_store(self):
        """Forked workers inherit the job's store."""
        kept = self.completed(1, a=b"parent's")
        state = self.enterContext(tempfile.NamedTemporaryFile())

        def child():
            assert bytes(kept.load(1, "a")) == b"parent's"
            pathlib.Path(state.name).write_text(kept.save(2, "a", b"child's"))

        self.assertEqual(run_in_child(child), 0)
        kept.complete(2, {"a": pathlib.Path(state.name).read_text()}, [])
        self.assertEqual(bytes(kept.load(2, "a")), b"child's")

    def test_clear_removes_all_checkpoints(self):
        self.completed(1, a=b"one").save(2, "b", LARGE)
        self.open().clear()
        self.assertEqual(self.files(), [])


class FolderStoreTests(StoreCases, KnownMarksCase):
    def setUp(self):
        super().setUp()
        self.place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "checkpoints"

    def open(self):
        return store(str(self.place))

    def files(self):
        return sorted(str(path.relative_to(self.place)) for path in self.place.rglob("*") if path.is_file())

    def read(self, name):
        return (self.place / name).read_bytes()

    def write(self, name, content):
        (self.place / name).write_bytes(content)


class ObjectStoreTests(StoreCases, ObjectStoreCase, KnownMarksCase):
    def open(self):
        return _s3.ObjectStore(self.url())

    def client(self):
        import boto3

        return boto3.client("s3", endpoint_url=self.server.endpoint)

    def files(self):
        return [name.removeprefix(f"{self.id()}/") for name in self.server.objects() if name.startswith(f"{self.id()}/")]

    def read(self, name):
        return self.client().get_object(Bucket="nearpath", Key=f"{self.id()}/{name}")["Body"].read()

    def write(self, name, content):
        self.client().put_object(Bucket="nearpath", Key=f"{self.id()}/{name}", Body=content)

    def test_the_memory_of_a_save_is_bounded(self):
        """A save does not copy the whole state."""

        def child():
            kept, state = self.open(), bytes(256 << 20)
            kept.save(1, "a", b"small")  # loads all modules
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            kept.save(1, "a", memoryview(state)[:].obj)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            assert grown < 128 << 10, f"{grown} KiB more than before"

        self.assertEqual(run_in_child(child), 0)

    def test_other_objects_are_kept(self):
        """Objects outside checkpoints are kept."""
        self.write("notes/complete", b"another owner's")
        self.completed(1, a=b"one")
        self.open().clear()
        self.assertEqual(self.files(), ["notes/complete"])


class StoreUrlTests(unittest.TestCase):
    def test_urls_are_parsed(self):
        place = _s3.Place.parse("s3://bucket/a/b/?endpoint=https://host:9000&region=eu-west-1")
        self.assertEqual(place, _s3.Place("bucket", "a/b/", "https://host:9000", "eu-west-1"))
        self.assertEqual(_s3.Place.parse("s3://bucket"), _s3.Place("bucket", "", None, None))
        self.assertEqual(below("s3://bucket/a/?region=x", "job"), "s3://bucket/a/job?region=x")
        self.assertEqual(below("s3://bucket", "job"), "s3://bucket/job")
        self.assertEqual(below("/a", "job"), "/a/job")

    def test_an_invalid_url_is_refused(self):
        for url, why in {
            "http://host/a": "invalid store http://",
            "s3://key:secret@bucket/a": "credentials do not belong",
            "s3:///a": "expected s3://bucket/prefix",
            "s3://bucket/a?endpiont=x": "expected s3://bucket/prefix",
            "s3://bucket/a?endpoint=host": "expected https://",
        }.items():
            with self.subTest(url), self.assertRaisesRegex(ValueError, why) as raised:
                store(url)
            self.assertNotIn("secret", str(raised.exception))

    def test_a_missing_boto3_is_reported(self):
        with unittest.mock.patch.dict(sys.modules, {"boto3": None}), self.assertRaisesRegex(ImportError, "pip install boto3"):
            _s3.ObjectStore("s3://bucket")


if __name__ == "__main__":
    unittest.main()
