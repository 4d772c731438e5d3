"""Jobs with checkpoints in an object store or a shared folder. Failing stores: slow_dataflow_store.py."""

import signal
import unittest

import store_fixture


class LocalStoreTests(store_fixture.LocalStoreCase):
    """Runs forked workers."""

    def test_a_death_restarts_from_the_store(self):
        done = self.run_summing(4000, signals=[[3500, signal.SIGKILL]])
        self.assertGreater(done.report.checkpoints, 0)
        self.assertEqual(len(done.report.restarts), 1)
        self.assertLess(done.report.stages["map"].items, 2 * 4000, "resumed from a checkpoint")

    def test_a_shared_folder_serves_as_store(self):
        place = self.folder / "checkpoints"
        done = self.run_summing(4000, signals=[[3500, signal.SIGKILL]], checkpoints=str(place))
        self.assertGreater(done.report.checkpoints, 0)
        self.assertEqual(list(place.iterdir()), [])

    def test_a_missing_bucket_is_reported_at_once(self):
        with self.assertRaisesRegex(FileNotFoundError, "there is no such bucket"):
            self.run_summing(10, checkpoints=self.url(bucket="missing-bucket"))


if __name__ == "__main__":
    unittest.main()
