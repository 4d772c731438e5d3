"""Parts of the comparison: data, work, killed workers, results."""

import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import account
import check
import data
import killer
import pyarrow.feather
import table
import work
from rounds import Row


class Data(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder, self.out = os.path.join(place.name, "data"), os.path.join(place.name, "out")
        os.mkdir(self.out)
        data.make(self.folder, 0.0005, 7)

    def reduce(self, mappers, reducers):
        job = work.Job(self.folder, data.FILES, mappers, reducers, self.out)
        divided = [work.parts(job, mapper) for mapper in range(mappers)]
        for reducer in range(reducers):
            reduction = work.Reduction()
            for parts in divided:
                reduction.add(parts[reducer])
            reduction.write(job, reducer)

    def test_the_work_makes_the_right_sums(self):
        self.reduce(40, 3)
        self.assertTrue(check.is_exact(self.folder, self.out))

    def test_a_sum_that_is_wrong_is_found(self):
        self.reduce(40, 3)
        os.remove(os.path.join(self.out, "sums-1.arrow"))
        self.assertFalse(check.is_exact(self.folder, self.out))

    def test_the_shape(self):
        right = pyarrow.feather.read_table(os.path.join(self.folder, "right.arrow"))
        self.assertAlmostEqual(right.num_rows / (data.WORDS * 0.0005), 1, delta=0.1)
        words, counts = right.column("word").to_pylist(), right.column("count").to_pylist()
        self.assertEqual(len(set(words)), len(words))
        self.assertEqual(counts[0], max(counts), "the first is the most frequent")

    def test_the_same_seed_makes_the_same_data(self):
        other = self.folder + "2"
        data.make(other, 0.0005, 7)
        self.assertTrue(all(pathlib.Path(self.folder, name).read_bytes() == pathlib.Path(other, name).read_bytes() for name in os.listdir(other)))


class Deaths(unittest.TestCase):
    def test_who_has_started_nobody_is_killed(self):
        with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait; exit 5"], start_new_session=True) as job:
            self.addCleanup(job.kill)
            while len(list(killer.leaves(job.pid))) < 2:
                pass
            killing = killer.Killer(job.pid, 1, 0.0, 2)
            killing.start()
            self.assertEqual(job.wait(), 5)
            self.assertEqual(killing.end(), 2)


class Results(unittest.TestCase):
    def rows(self, seconds):
        return [Row("c", way, 1, took, 0.0, 0, fixed_gb_seconds=took) for way, took in seconds.items()]

    def test_goals(self):
        met = table.ratios(self.rows({"nearpath": 1.0, "s3": 6.0, "redis": 1.4}), "c")
        self.assertEqual([one.is_met for one in met], [True, True, False, True])
        lost = table.ratios(self.rows({"nearpath": math.nan, "s3": 6.0}), "c")
        self.assertFalse(any(one.is_met for one in lost), "nothing measured is no success")

    def test_the_bill(self):
        workers = [account.Spent("map.0", 1.0, 3.0, 0.5, 0.25, 0.1), account.Spent("reduce.0", 1.0, 5.0, 1.0, 0.0, 0.2)]
        bill = account.bill(workers)
        self.assertAlmostEqual(bill["gb_seconds"], 1.0)
        self.assertAlmostEqual(bill["fixed_gb_seconds"], 6 * account.FIXED)
        self.assertAlmostEqual(bill["waiting_seconds"], 1.25 + 3.0)


if __name__ == "__main__":
    unittest.main()
