"""Jobs on this machine: what they make, and that they make it exactly whoever dies."""

import contextlib
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

from surroundings import DEADLINE, skip

from nearpath import dataflow as flow
from nearpath.dataflow._report import Progress


def numbers(count, workers=2):
    def make(number, of):
        yield from range(number, count, of)

    return flow.source(make, workers=workers, total=count)


def sums(count, keys):
    sums = {}
    for number in range(count):
        sums[number % keys] = sums.get(number % keys, 0) + number
    return sums


def summing(count, keys, change=lambda number: number):
    """A job whose every item passes `change`, between two streams."""
    pairs = numbers(count) >> flow.map(lambda number: (change(number) % keys, number), workers=2)
    return pairs >> flow.reduce_by_key(int.__add__, workers=3) >> flow.collect()


def left_over():
    return set(pathlib.Path(tempfile.gettempdir()).glob("nearpath-dataflow-*"))


class Alarm(unittest.TestCase):
    """A job that hangs is a failure."""

    def setUp(self):
        signal.alarm(DEADLINE)
        self.addCleanup(signal.alarm, 0)
        self.place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def once(self, name):
        """True the first time that any process asks."""
        with contextlib.suppress(FileExistsError):
            (self.place / name).touch(exist_ok=False)
            return True
        return False


class Jobs(Alarm):
    def test_reduce_by_key(self):
        before = left_over()
        job = flow.run(summing(20_000, 100))
        self.assertEqual(dict(job.results), sums(20_000, 100))
        self.assertEqual(len(job.results), 100)
        self.assertEqual(job.report.stages["source"].items, 20_000)
        self.assertEqual(job.report.paths, {"local": 11})
        self.assertIn("reduce-by-key", str(job.report))
        self.assertEqual(left_over(), before)

    def test_every_way_to_divide_items(self):
        source = numbers(1000, workers=2)
        spread = source >> flow.filter(lambda number: number % 2 == 0, workers=3, name="spread")
        everywhere = flow.map(lambda number: number, workers=2, name="everywhere").after(source, how="broadcast")
        job = flow.run(spread >> flow.collect(name="even"), everywhere >> flow.collect(name="all"))
        self.assertEqual(sorted(job.results), sorted([*range(0, 1000, 2), *range(1000), *range(1000)]))

    def test_lines(self):
        end = numbers(100) >> flow.flat_map(lambda number: [number] * 2, workers=2)
        flow.run(end >> flow.lines(f"{self.place}/out.{{number}}", workers=2))
        written = sorted(int(line) for file in self.place.glob("out.*") for line in file.read_text().split())
        self.assertEqual(written, sorted([*range(100), *range(100)]))
        with self.assertRaisesRegex(ValueError, "put {number}"):
            flow.lines("out", workers=2)

    def test_batches_pass_as_they_are(self):
        class Forward(flow.Worker):
            codec = "raw"

            def process(self, items):
                yield from items

        job = flow.run(numbers(5000) >> flow.stage(Forward, workers=2) >> flow.collect())
        self.assertEqual(sorted(job.results), list(range(5000)))

    def test_a_codec_of_ones_own(self):
        class Lines(flow.Worker):
            def serialise(self, items):
                yield json.dumps(list(items)).encode()

            def deserialise(self, batch):
                yield from map(tuple, json.loads(bytes(batch)))

        class Words(Lines):
            def input(self, port):
                yield from ((word, 1) for word in "a b a c a b".split())

        class Count(Lines):
            def start(self):
                self.counts = {}

            def process(self, items):
                for word, count in items:
                    self.counts[word] = self.counts.get(word, 0) + count
                return ()

            def finish(self):
                yield from self.counts.items()

        class Out(Lines):
            def output(self, items, port):
                with open(place, "a") as file:
                    file.writelines(f"{word} {count}\n" for word, count in items)

        place = self.place / "counts"
        counts = flow.stage(Words) >> flow.stage(Count, workers=2, reads="by-key")
        flow.run(counts >> flow.stage(Out))
        self.assertEqual(sorted(place.read_text().splitlines()), ["a 3", "b 2", "c 1"])

    def test_a_slow_reader_and_a_disk_between(self):
        slow = flow.map(lambda text: len(text)).after(flow.source(lambda n, of: ("x" * 1000 for _ in range(2000))), spill=True)
        job = flow.run(slow >> flow.collect(), window=64 << 10)
        self.assertEqual(job.results, [1000] * 2000)

    def test_an_exception_ends_the_job_and_is_told(self):
        def wrong(number):
            if number == 700:
                raise LookupError("no such number")
            return number

        before = left_over()
        with self.assertRaises(flow.JobFailed) as raised:
            flow.run(summing(1000, 10, wrong))
        self.assertEqual(raised.exception.worker, "map.0")
        self.assertIn("LookupError: no such number", str(raised.exception))
        self.assertIn("in wrong", raised.exception.trace)
        self.assertEqual(left_over(), before)

    def test_topologies_as_they_are_written_down(self):
        text = """{"workers": [
            {"name": "reader", "inputs": [{"type": "count", "to": 10}], "outputs": [{"type": "tcp", "worker": "left"}, {"type": "tcp", "worker": "right"}]},
            {"name": "left", "stage": "double", "inputs": [{"type": "tcp", "worker": "reader"}], "outputs": [{"type": "tcp", "worker": "writer"}]},
            {"name": "right", "stage": "double", "inputs": [{"type": "tcp", "worker": "reader"}], "outputs": [{"type": "tcp", "worker": "writer"}]},
            {"name": "writer", "inputs": [{"type": "tcp", "worker": "left"}, {"type": "tcp", "worker": "right"}], "outputs": [{"type": "file"}]}]}"""

        class Reader(flow.Worker):
            def input(self, port):
                yield from range(port["to"])

        class Double(flow.Worker):
            def process(self, items):
                for item in items:
                    yield item * 2

        code = {"reader": Reader, "double": Double, "writer": flow.collect().worker}
        job = flow.run(flow.Topology(text, code))
        self.assertEqual(sorted(job.results), sorted([n * 2 for n in range(10)] * 2))
        with self.assertRaisesRegex(ValueError, "no code is given for 'double'"):
            flow.Topology(text, {"reader": Reader, "writer": Reader})


class Columns(Alarm):
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

    def test_reduce_by_key(self):
        died, batches = self.place / "died", self.batches

        def change(batch):
            if batch.column(1)[0].as_py() == 9_000 and not died.exists():
                died.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return batch

        columns = self.arrow.source(batches, workers=2) >> self.arrow.map(change, workers=2)
        sums = columns >> self.arrow.reduce_by_key("sum", workers=3) >> self.arrow.rows(workers=3)
        job = flow.run(sums >> flow.collect(), every=0.05)
        expected = {}
        for value in range(20_000):
            key = f"key {value % 70}" if value % 71 else None
            expected[key] = expected.get(key, 0) + value
        self.assertEqual(len(job.results), len(expected))
        self.assertEqual(dict(job.results), expected)
        self.assertEqual(len(job.report.restarts), 1)

    def test_rows_go_where_their_keys_would(self):
        """Read where it lies or one by one, a column has the shares that its values have elsewhere."""
        text = ["", "a", "größer", "a", "日本", "x" * 300] * 20
        whole = self.pa.array(text)
        others = self.pa.array([*text, None]), self.pa.array(text, self.pa.large_string()), self.pa.array(range(99))
        for keys in (whole, whole.slice(7, 50), whole.slice(3, 0), *others):
            batch = self.pa.record_batch({"key": keys, "value": list(range(len(keys)))})
            divided = self.arrow.ArrowWorker().divide([batch], 5)
            rows = [(consumer, key) for consumer, part in enumerate(divided) for one in part for key in one.column(0).to_pylist()]
            expected = [(flow.share(key, 5), key) for key in keys.to_pylist()]
            self.assertEqual(sorted(rows, key=repr), sorted(expected, key=repr), keys.type)

    def test_what_is_no_column_of_text_is_refused(self):
        from nearpath.dataflow import _native

        def ends(*places):
            return self.pa.array(places, self.pa.int32()).buffers()[1].to_pybytes()[: 4 * len(places)]

        self.assertEqual(len(_native.text_shares(ends(0, 1, 3), b"abc", 2)), 8)
        for wrong in (ends(0, 4), ends(-1, 2), ends(2, 1)):
            with self.assertRaisesRegex(ValueError, "no column of text"):
                _native.text_shares(wrong, b"abc", 2)


class Graphs(unittest.TestCase):
    def test_what_is_wrong_is_told(self):
        source, end = numbers(1), flow.collect()
        change = source >> flow.map(abs, name="change")
        source.after(change)
        with self.assertRaisesRegex(ValueError, "round for ever: .*change"):
            flow.run(change >> end)
        with self.assertRaisesRegex(ValueError, "reads 9 streams, 8 is the limit"):
            flow.run(numbers(1, workers=9) >> flow.collect(), fan_in=8)
        with self.assertRaisesRegex(ValueError, "one-to-one needs the same number"):
            flow.run(flow.map(abs, workers=2).after(numbers(1, workers=3), how="one-to-one"))

    def test_pictures(self):
        graph = flow.Graph(summing(1, 1))
        self.assertIn('"map" -> "reduce-by-key" [label="by-key"]', graph.picture("dot"))
        self.assertTrue(graph.picture().startswith("<svg"))


class Values(unittest.TestCase):
    def test_come_back(self):
        items = [None, True, False, 0, -1, 2**63, -(2**70), 1.5, "größe", b"\0\xff", (1, (2, [3, {"a": None}])), {}, [], ()]
        self.assertEqual(flow.decode(flow.encode(items)), items)
        self.assertEqual([type(item) for item in flow.decode(flow.encode(items))], [type(item) for item in items])

    def test_keys_that_are_equal_go_the_same_way(self):
        for alike in [(1, 1.0, True), (0, -0.0, False), ((1, "a"), (1.0, "a")), (2**70, float(2**70))]:
            self.assertEqual(len({flow.share(key, 1 << 20) for key in alike}), 1, alike)

    def test_what_is_not_plain_is_refused(self):
        with self.assertRaisesRegex(TypeError, "object is no plain value"):
            flow.encode([object()])
        deep = []
        for _ in range(100):
            deep = [deep]
        with self.assertRaisesRegex(ValueError, "nested deeper"):
            flow.encode([deep])

    def test_bytes_that_are_no_values(self):
        for bad in [b"\xff", b"\x08\x05", b"\x06\x03ab", b"\x06\x01\xff", b"\x08\x01" * 100, b"\x08\xff\xff\xff\xff\x0f"]:
            with self.assertRaises(ValueError):
                flow.decode(bad)


class Deaths(Alarm):
    """Somebody is killed in mid-stream; the sums are as if nobody had been."""

    def die_once(self, at):
        def change(number):
            if number in at and self.once(f"died-at-{number}"):
                os.kill(os.getpid(), signal.SIGKILL)
            return number

        return change

    def test_in_mid_stream_from_the_beginning(self):
        job = flow.run(summing(20_000, 100, self.die_once({11_000})), every=1000)
        self.assertEqual(dict(job.results), sums(20_000, 100))
        self.assertEqual(job.report.checkpoints, 0)
        self.assertEqual(len(job.report.restarts), 1)

    def test_in_mid_stream_from_a_checkpoint(self):
        """The source is slow until there is a checkpoint, so one lies before the death; what it had made by then is not made again."""
        place = self.place

        def make(number, of):
            pause = Pause(place / "folder")
            for item in range(number, 6000, of):
                if item >= 3000:
                    pause()
                yield item

        die = self.die_once({4000})
        counted = []

        def change(number):
            counted.append(number)
            if number == 5998:
                (place / f"counted-{os.getpid()}").write_text(str(len(counted)))
            return die(number)

        pairs = flow.source(make, workers=2) >> flow.map(lambda n: (change(n) % 10, n), workers=2)
        end = pairs >> flow.reduce_by_key(int.__add__, workers=3) >> flow.collect()
        job = flow.run(end, every=0.1, folder=str(place / "folder"))
        self.assertEqual(dict(job.results), sums(6000, 10))
        self.assertEqual(len(job.report.restarts), 1)
        self.assertGreaterEqual(job.report.checkpoints, 1)
        (last,) = place.glob("counted-*")
        self.assertLess(int(last.read_text()), 2000, "what lay before the checkpoint was done again")
        self.assertFalse((place / "folder" / "nearpath-job").exists())

    def test_at_the_reducer_and_at_the_start(self):
        def add(left, right):
            if self.once("reducer"):
                os.kill(os.getpid(), signal.SIGKILL)
            return left + right

        def make(number, of):
            if self.once("start"):
                os.kill(os.getpid(), signal.SIGKILL)
            yield from range(number, 5000, of)

        pairs = flow.source(make, workers=2) >> flow.map(lambda n: (n % 10, n), workers=2)
        job = flow.run(pairs >> flow.reduce_by_key(add, workers=3) >> flow.collect(), every=0.05)
        self.assertEqual(dict(job.results), sums(5000, 10))
        self.assertEqual(len(job.report.restarts), 2)

    def test_with_what_lies_on_disk(self):
        """A barrier goes to disk behind batches, and the job goes on from it."""
        die = self.die_once({1800})

        def slow(item):
            time.sleep(0.0005)  # so that there is something on disk
            return die(item[0])

        source = flow.source(lambda number, of: ((item, "x" * 1000) for item in range(2000)))
        end = flow.map(slow).after(source, spill=True) >> flow.collect()
        job = flow.run(end, window=64 << 10, every=0.1)
        self.assertEqual(job.results, list(range(2000)))
        self.assertEqual(len(job.report.restarts), 1)
        self.assertGreater(job.report.stages["source"].spilled, 0)

    def test_who_dies_again_and_again_ends_the_job(self):
        def die(number):
            os.kill(os.getpid(), signal.SIGKILL)

        with self.assertRaisesRegex(flow.JobFailed, "gave up after 2 restarts; the last: map.*signal 9"):
            flow.run(numbers(10) >> flow.map(die) >> flow.collect(), retries=2)

    def test_a_run_goes_on_where_the_last_one_failed(self):
        """The first fails behind a checkpoint; the second begins there."""
        folder = self.place / "folder"

        def make(number, of):
            pause = Pause(folder)
            for item in range(6000):
                if item >= 3000:
                    pause()
                yield item

        def change(number):
            if number == 5000 and self.once("failed"):
                raise OSError("the disk is full")
            return number

        end = flow.source(make) >> flow.map(change) >> flow.collect()
        with self.assertRaisesRegex(flow.JobFailed, "the disk is full"):
            flow.run(end, every=0.1, folder=str(folder))
        with self.assertRaisesRegex(ValueError, "holds another job"):
            flow.run(numbers(1) >> flow.collect(), folder=str(folder))
        job = flow.run(end, every=0.1, folder=str(folder))
        self.assertEqual(job.results, list(range(6000)))
        self.assertLess(job.report.stages["map"].items, 3500)


    def test_two_runs_do_not_share_a_folder(self):
        folder = str(self.place / "folder")

        def make(number, of):
            again = numbers(1) >> flow.collect()
            (self.place / "told").write_text(refused(again))
            yield 1

        def refused(job):
            try:
                flow.run(job, folder=folder)
            except ValueError as error:
                return str(error)

        self.assertEqual(flow.run(flow.source(make) >> flow.collect(), folder=folder).results, [1])
        self.assertRegex((self.place / "told").read_text(), "another run uses .*: end that one")


class Pause:
    """A source that is slow until a checkpoint is complete that began after the first call: they begin between two items."""

    def __init__(self, folder):
        self.folder, self.until = folder / "nearpath-job" / "checkpoints", None

    def __call__(self):
        last = max((int(complete.parent.name) for complete in self.folder.glob("*/complete")), default=0)
        self.until = self.until or last + 2
        if last < self.until:
            time.sleep(0.02)


class Cancelled(Alarm):
    """Whatever ends a job, its workers end, too."""

    JOB = r"""
        import os, sys, time
        from nearpath import dataflow as flow

        def forever(number, of):
            os.write(1, b"%d\n" % os.getpid())  # whole, whoever else writes
            while True:
                yield time.sleep(0.01)

        flow.run(flow.source(forever, workers=2) >> flow.map(str, workers=2) >> flow.sink(len))
    """

    HOOK = "import os, signal; os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))\n"

    def begun(self, program):
        temp = self.place / "temp"
        temp.mkdir()
        surroundings = dict(os.environ, TMPDIR=str(temp), PYTHONPATH=os.pathsep.join(sys.path))
        command = [sys.executable, "-c", program]
        return temp, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=surroundings)

    def ended_by(self, number):
        temp, job = self.begun(textwrap.dedent(self.JOB))
        with job:
            children = [os.pidfd_open(int(job.stdout.readline())) for _ in range(2)]
            job.send_signal(number)
            code = job.wait()
        for child in children:
            select.select([child], [], [])  # readable once it has ended; if it never does, the alarm
            os.close(child)
        return code, list(temp.iterdir())

    def test_by_ctrl_c(self):
        code, left = self.ended_by(signal.SIGINT)
        self.assertEqual((code, left), (-signal.SIGINT, []))

    def test_by_ctrl_c_while_python_forks(self):
        """What a handler raises there is dropped."""
        temp, job = self.begun(self.HOOK + textwrap.dedent(self.JOB))
        with job:
            self.assertEqual((job.wait(), list(temp.iterdir())), (-signal.SIGINT, []))

    def test_by_sigterm(self):
        code, left = self.ended_by(signal.SIGTERM)
        self.assertEqual((code, left), (128 + signal.SIGTERM, []))

    def test_by_sigkill(self):
        self.assertEqual(self.ended_by(signal.SIGKILL)[0], -signal.SIGKILL)


class ProgressLines(unittest.TestCase):
    def test_rate_and_time_to_go(self):
        progress = Progress(1000)
        for second in range(1, 5):
            line = progress.line(float(second), second * 100, 0, 4)
        self.assertIn("40%", line)
        self.assertIn("100/s", line)
        self.assertIn("00:06 to go", line)

    def test_no_total_and_a_restart(self):
        progress = Progress(None)
        progress.line(1.0, 500, 0, 4)
        self.assertIn("100 items", progress.line(2.0, 100, 0, 4))
        self.assertIn("50/s", progress.line(3.0, 150, 2, 4))


if __name__ == "__main__":
    unittest.main()
