"""What passes proxy workers: values, keys and columns."""

import collections
import datetime
import os
import signal
import unittest

from cases import TemporaryFolderCase
from fixtures import skip

from nearpath import dataflow as flow


class ValueTests(unittest.TestCase):
    def test_values_decode_to_themselves(self):
        items = [None, True, False, 0, -1, 2**63, -(2**70), 1.5, "größe", b"\0\xff", (1, (2, [3, {"a": None}])), {}, [], ()]
        self.assertEqual(flow.decode(flow.encode(items)), items)
        self.assertEqual([type(item) for item in flow.decode(flow.encode(items))], [type(item) for item in items])

    def test_equal_keys_have_the_same_consumer(self):
        for alike in [(1, 1.0, True), (0, -0.0, False), ((1, "a"), (1.0, "a")), (2**70, float(2**70))]:
            self.assertEqual(len({flow.key_partition(key, 1 << 20) for key in alike}), 1, alike)

    def test_dates_pass_and_named_tuples_arrive_as_tuples(self):
        at = datetime.datetime(2026, 1, 31, 8, 9, 10, 500, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
        items = [datetime.date(2026, 1, 31), at, at.replace(tzinfo=None)]
        self.assertEqual(flow.decode(flow.encode(items)), items)
        self.assertEqual(flow.key_partition(at, 1 << 20), flow.key_partition(at.astimezone(datetime.timezone.utc), 1 << 20))
        Point = collections.namedtuple("Point", "x y")
        self.assertEqual(flow.decode(flow.encode([Point(1, 2.5)])), [(1, 2.5)])

    def test_scalars_of_numpy_arrive_as_python_values(self):
        try:
            import numpy
        except ImportError:
            skip("needs the package numpy: pip install numpy")
        items = [numpy.int64(-7), numpy.float32(1.5), numpy.bool_(True), numpy.str_("a"), (numpy.uint8(3), 4)]
        decoded = flow.decode(flow.encode(items))
        self.assertEqual(decoded, [-7, 1.5, True, "a", (3, 4)])
        self.assertEqual([type(item) for item in decoded], [int, float, bool, str, tuple])
        with self.assertRaisesRegex(TypeError, "ndarray is not a plain value"):
            flow.encode([numpy.zeros(3)])

    def test_other_values_are_refused(self):
        with self.assertRaisesRegex(TypeError, "object is not a plain value"):
            flow.encode([object()])
        deep = []
        for _ in range(100):
            deep = [deep]
        with self.assertRaisesRegex(ValueError, "nested deeper"):
            flow.encode([deep])

    def test_invalid_bytes_are_refused(self):
        for bad in [b"\xff", b"\x08\x05", b"\x06\x03ab", b"\x06\x01\xff", b"\x08\x01" * 100, b"\x08\xff\xff\xff\xff\x0f"]:
            with self.assertRaises(ValueError):
                flow.decode(bad)


class ColumnTests(TemporaryFolderCase):
    def setUp(self):
        super().setUp()
        try:
            import pyarrow
        except ImportError:
            skip("needs the package pyarrow: pip install pyarrow")
        from nearpath.dataflow import arrow

        self.pa, self.arrow = pyarrow, arrow

    def batches(self, number, of):
        for start in range(number * 500, 20_000, of * 500):
            values = range(start, start + 500)
            keys = [f"key {value % 70}" if value % 71 else None for value in values]
            yield self.pa.record_batch({"key": keys, "value": list(values)})

    def test_columns_are_reduced_by_key_despite_a_death(self):
        died, batches = self.folder / "died", self.batches

        def change(batch):
            if batch.column(1)[0].as_py() == 9_000 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return batch

        columns = self.arrow.source(batches, workers=2) >> self.arrow.map(change, workers=2)
        sums = columns >> self.arrow.reduce_by_key("sum", workers=3) >> self.arrow.rows(workers=3)
        job = flow.run(sums >> flow.collect(), checkpoint_interval=0.05)
        expected = {}
        for value in range(20_000):
            key = f"key {value % 70}" if value % 71 else None
            expected[key] = expected.get(key, 0) + value
        self.assertEqual(len(job.results), len(expected))
        self.assertEqual(dict(job.results), expected)
        self.assertEqual(len(job.report.restarts), 1)

    def test_rows_have_the_same_consumers_as_their_keys(self):
        """Keys have the same consumer in a column, in place or not, and as single values."""
        text = ["", "a", "größer", "a", "日本", "x" * 300] * 20
        whole = self.pa.array(text)
        others = self.pa.array([*text, None]), self.pa.array(text, self.pa.large_string()), self.pa.array(range(99))
        days = [datetime.date(2026, 1, 1 + day % 28) for day in range(99)]
        moments = [datetime.datetime(2026, 1, 1, day % 24) for day in range(99)]
        numbers = self.pa.array([*range(-50, 49), None]), self.pa.array(range(9), self.pa.int8()), self.pa.array([2**64 - 1, 1], self.pa.uint64())
        times = self.pa.array(days), self.pa.array(moments), self.pa.array(moments, self.pa.timestamp("ns", "UTC"))
        coded = whole.dictionary_encode(), self.pa.array([*text, None]).dictionary_encode()
        others = (*others, *numbers, numbers[0].slice(9, 80), *times, *coded, self.pa.array([*text, None]).slice(5, 100))
        for keys in (whole, whole.slice(7, 50), whole.slice(3, 0), *others):
            batch = self.pa.record_batch({"key": keys, "value": list(range(len(keys)))})
            divided = self.arrow.ArrowWorker().divide([batch], 5)
            rows = [(consumer, key) for consumer, part in enumerate(divided) for one in part for key in one.column(0).to_pylist()]
            expected = [(flow.key_partition(key, 5), key) for key in keys.to_pylist()]
            self.assertEqual(sorted(rows, key=repr), sorted(expected, key=repr), keys.type)

    def test_an_invalid_text_column_is_refused(self):
        from nearpath.dataflow import _native

        def ends(*places):
            return self.pa.array(places, self.pa.int32()).buffers()[1].to_pybytes()[: 4 * len(places)]

        self.assertEqual(len(_native.text_partitions(ends(0, 1, 3), b"abc", 2)), 8)
        for wrong in (ends(0, 4), ends(-1, 2), ends(2, 1)):
            with self.assertRaisesRegex(ValueError, "invalid text column"):
                _native.text_partitions(wrong, b"abc", 2)


if __name__ == "__main__":
    unittest.main()
