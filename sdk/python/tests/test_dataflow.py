"""Results of local jobs."""

import json
import unittest

from cases import TemporaryFolderCase
from jobs_local import numbers, summing, sums

from nearpath import dataflow as flow
from nearpath.dataflow._report import Progress


class LocalJobTests(TemporaryFolderCase):
    def test_reduce_by_key_gives_exact_sums(self):
        job = flow.run(summing(20_000, 100))
        self.assertEqual(dict(job.results), sums(20_000, 100))
        self.assertEqual(len(job.results), 100)
        self.assertEqual(job.report.stages["source"].items, 20_000)
        self.assertEqual(job.report.paths, {"local": 11})
        self.assertIn("reduce-by-key", str(job.report))
        self.assertEqual(self.remaining_files(), [])

    def test_each_distribution_delivers_all_items(self):
        source = numbers(1000, workers=2)
        spread = source >> flow.filter(lambda number: number % 2 == 0, workers=3, name="spread")
        everywhere = flow.map(lambda number: number, workers=2, name="everywhere").after(source, how="broadcast")
        job = flow.run(spread >> flow.collect(name="even"), everywhere >> flow.collect(name="all"))
        self.assertEqual(sorted(job.results), sorted([*range(0, 1000, 2), *range(1000), *range(1000)]))

    def test_lines_writes_one_line_per_item(self):
        end = numbers(100) >> flow.flat_map(lambda number: [number] * 2, workers=2)
        flow.run(end >> flow.lines(f"{self.folder}/out.{{number}}", workers=2))
        written = sorted(int(line) for file in self.folder.glob("out.*") for line in file.read_text().split())
        self.assertEqual(written, sorted([*range(100), *range(100)]))
        with self.assertRaisesRegex(ValueError, "put {number}"):
            flow.lines("out", workers=2)

    def test_a_raw_worker_forwards_batches(self):
        class Forward(flow.Worker):
            codec = "raw"

            def process(self, items):
                yield from items

        job = flow.run(numbers(5000) >> flow.stage(Forward, workers=2) >> flow.collect())
        self.assertEqual(sorted(job.results), list(range(5000)))

    def test_a_custom_codec_is_used(self):
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

        place = self.folder / "counts"
        counts = flow.stage(Words) >> flow.stage(Count, workers=2, reads="by-key")
        flow.run(counts >> flow.stage(Out))
        self.assertEqual(sorted(place.read_text().splitlines()), ["a 3", "b 2", "c 1"])

    def test_a_slow_consumer_spills_to_disk(self):
        slow = flow.map(lambda text: len(text)).after(flow.source(lambda n, of: ("x" * 1000 for _ in range(2000))), spill=True)
        job = flow.run(slow >> flow.collect(), window=64 << 10)
        self.assertEqual(job.results, [1000] * 2000)

    def test_an_exception_ends_the_job_and_is_reported(self):
        def wrong(number):
            if number == 700:
                raise LookupError("no such number")
            return number

        with self.assertRaises(flow.JobFailed) as raised:
            flow.run(summing(1000, 10, wrong))
        self.assertEqual(raised.exception.worker, "map.0")
        self.assertIn("LookupError: no such number", str(raised.exception))
        self.assertIn("in wrong", raised.exception.trace)
        self.assertEqual(self.remaining_files(), [])

    def test_a_connection_error_of_the_users_code_is_its_own_failure(self):
        def query(number):
            if number == 7:
                raise ConnectionResetError("the database closed the connection")
            return number

        stages = {
            "map": summing(10, 10, query),
            "source": flow.source(lambda n, of: (query(i) for i in range(10))) >> flow.collect(),
            "sink": numbers(10) >> flow.sink(query),
        }
        for worker, graph in stages.items():
            with self.subTest(worker), self.assertRaises(flow.JobFailed) as raised:
                flow.run(graph)
            self.assertEqual(raised.exception.worker.partition(".")[0], worker)
            self.assertIn("ConnectionResetError: the database closed", str(raised.exception))
            # The user's own frames come first, and none of the package's before them.
            self.assertRegex(raised.exception.trace, r'^Traceback[^\n]*\n  File "[^"]*/tests/\w+.py", line \d+')
            if worker != "source":
                self.assertIn("while processing the item 7", raised.exception.trace)

    def test_the_published_form_of_a_topology_runs(self):
        text = """[
            {"name": "reader", "inputs": [{"type": "count", "to": 10}], "outputs": [{"type": "tcp", "name": "writer"}]},
            {"name": "writer", "inputs": [{"type": "tcp", "name": "reader"}], "outputs": [{"type": "file"}]}]"""

        class Reader(flow.Worker):
            def input(self, port):
                yield from range(port["to"])

        job = flow.run(flow.Topology(text, {"reader": Reader, "writer": flow.collect().worker}))
        self.assertEqual(job.results, list(range(10)))

    def test_jobs_and_graphs_are_short_in_a_notebook(self):
        graph = numbers(1000) >> flow.collect()
        job = flow.run(graph)
        self.assertRegex(repr(job), r"^Job\(1000 results in \d+\.\d\d s; ")
        self.assertIn("</pre>", job._repr_html_())
        self.assertTrue(flow.Graph(graph)._repr_svg_().startswith("<svg"))

    def test_an_item_that_no_stream_carries_is_refused_before_it_is_encoded(self):
        graph = flow.source(lambda n, of: [b"x" * (65 << 20)]) >> flow.collect()
        with self.assertRaises(flow.JobFailed) as raised:
            flow.run(graph)
        self.assertIn("more than 64 MiB", str(raised.exception))

    def test_a_worker_divides_its_items_by_a_rule_of_its_own(self):
        class Halves(flow.Worker):
            def input(self, port):
                yield from range(100)

            def divide(self, items, consumers):
                return [[item for item in items if item * consumers // 100 == at] for at in range(consumers)]

        class Numbered(flow.Worker):
            def process(self, items):
                for item in items:
                    yield self.number, item

        halves = flow.stage(Halves) >> flow.stage(Numbered, workers=2, reads="by-key")
        job = flow.run(halves >> flow.collect())
        self.assertEqual(sorted(job.results), [(item // 50, item) for item in range(100)])

    def test_a_json_topology_runs(self):
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
        with self.assertRaisesRegex(ValueError, "no code for 'double'"):
            flow.Topology(text, {"reader": Reader, "writer": Reader})


class GraphTests(unittest.TestCase):
    def test_an_invalid_graph_is_refused_with_its_fault(self):
        source, end = numbers(1), flow.collect()
        change = source >> flow.map(abs, name="change")
        source.after(change)
        with self.assertRaisesRegex(ValueError, "cycle .*change"):
            flow.run(change >> end)
        with self.assertRaisesRegex(ValueError, "reads 9 streams, the limit is 8"):
            flow.run(numbers(1, workers=9) >> flow.collect(), fan_in=8)
        with self.assertRaisesRegex(ValueError, "one-to-one needs the same number"):
            flow.run(flow.map(abs, workers=2).after(numbers(1, workers=3), how="one-to-one"))

    def test_a_graph_is_rendered_as_dot_and_svg(self):
        graph = flow.Graph(summing(1, 1))
        self.assertIn('"map" -> "reduce-by-key" [label="by-key"]', graph.picture("dot"))
        self.assertTrue(graph.picture().startswith("<svg"))


class ProgressTests(unittest.TestCase):
    def test_progress_shows_the_rate_and_the_remaining_time(self):
        progress = Progress(1000)
        for second in range(1, 5):
            line = progress.line(float(second), second * 100, 0, 4)
        self.assertIn("40%", line)
        self.assertIn("100/s", line)
        self.assertIn("00:06 to go", line)

    def test_the_rate_restarts_after_a_death(self):
        progress = Progress(None)
        progress.line(1.0, 500, 0, 4)
        self.assertIn("100 items", progress.line(2.0, 100, 0, 4))
        self.assertIn("50/s", progress.line(3.0, 150, 2, 4))


if __name__ == "__main__":
    unittest.main()
