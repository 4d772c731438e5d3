"""Jobs whose checkpoints are in an object store or in a folder. When the store fails: slow_dataflow_store.py."""

import signal
import unittest

import store_jobs


class Here(store_jobs.Here):
    """Workers are forked."""

    def test_a_death(self):
        done = self.summing(4000, hits=[[3500, signal.SIGKILL]])
        self.assertGreater(done.report.checkpoints, 0)
        self.assertEqual(len(done.report.restarts), 1)
        self.assertLess(done.report.stages["map"].items, 2 * 4000, "it went on from a checkpoint")

    def test_a_folder_that_all_see(self):
        place = self.folder / "checkpoints"
        done = self.summing(4000, hits=[[3500, signal.SIGKILL]], checkpoints=str(place))
        self.assertGreater(done.report.checkpoints, 0)
        self.assertEqual(list(place.iterdir()), [])

    def test_what_nobody_may_write_is_told_at_once(self):
        with self.assertRaisesRegex(FileNotFoundError, "there is no such bucket"):
            self.summing(10, checkpoints=self.url(bucket="nobodys"))


if __name__ == "__main__":
    unittest.main()
