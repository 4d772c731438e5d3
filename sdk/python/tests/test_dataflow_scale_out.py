"""Jobs that add workers lose and repeat nothing, for any requester and any time. Deaths: slow_dataflow_scale_out.py."""

import json
import signal
import time
import unittest

import jobs_scale_out as jobs
from cases import TemporaryFolderCase
from jobs_remote import sums

from nearpath import dataflow as flow
from nearpath.dataflow._attempt import Attempt
from nearpath.dataflow._scale_out import ScaleOut


class ScaleOutCase(TemporaryFolderCase):
    def run_scaling_out(self, count=4000, keys=10, checkpoint_interval=0.1, retries=None, **options):
        """Runs a job and checks its sums."""
        job = flow.run(jobs.scaling_out(count, keys, str(self.folder), **options), checkpoint_interval=checkpoint_interval, retries=retries)
        self.assertEqual(dict(job.results), sums(count, keys))
        self.assertEqual(len(job.results), keys)
        return job

    def granted_workers(self):
        return {int(file.name.removeprefix("granted-")): int(file.read_text()) for file in self.folder.glob("granted-*")}

    def started_workers(self):
        return {file.name.removeprefix("worked-") for file in self.folder.glob("worked-*")}


class ScaleOutTests(ScaleOutCase):
    def test_requested_workers_take_part(self):
        job = self.run_scaling_out(worker_requests={100: 2, 501: 1})
        self.assertEqual(self.granted_workers(), {100: 2, 501: 1})
        self.assertEqual(self.started_workers(), {"work.0", "work.1", "work.2", "work.3"})
        self.assertEqual(job.report.stages["work"].workers, 4)
        self.assertEqual(job.report.stages["work"].items, 4000)

    def test_without_a_request_no_worker_is_added(self):
        job = self.run_scaling_out()
        self.assertEqual((job.report.stages["work"].workers, self.started_workers()), (1, {"work.0"}))

    def test_requests_are_granted_up_to_max_workers(self):
        self.run_scaling_out(worker_requests={100: 9, 301: 3}, max_workers=4)
        self.assertEqual(sorted(self.granted_workers().values()), [0, 3])

    def test_workers_requested_before_the_first_and_after_the_last_item_end_with_their_requester(self):
        """Requests before the first and after the last item start workers, which end with their requester."""
        self.run_scaling_out(count=2, worker_requests={0: 2, 1: 2}, keys=1)
        self.assertEqual((sum(self.granted_workers().values()), len(self.started_workers())), (4, 5))

    def test_process_and_finish_can_request_workers(self):
        class Split(flow.Worker):
            def process(self, items):
                for item in items:
                    if item == 500:
                        self.grow(2)
                    yield item

            def finish(self):
                self.grow()
                yield from range(1000, 2000)

        numbers = flow.source(lambda number, of: range(1000)) >> flow.stage(Split)
        job = flow.run(numbers >> flow.map(lambda item: item, max_workers=9) >> flow.collect(), checkpoint_interval=0.05)
        self.assertEqual(sorted(job.results), list(range(2000)))
        self.assertEqual(job.report.stages["map"].workers, 4)

    def test_an_added_worker_can_request_workers(self):
        class Middle(flow.Worker):
            def process(self, items):
                if not hasattr(self, "granted"):
                    self.granted = self.grow()
                return items

        feed = flow.stage(lambda: jobs.NumberSource(3000, {0: 2}, 0.0, str(self.folder), lambda item: None), name="feed")
        middle = feed >> flow.stage(Middle, max_workers=3, name="middle")
        job = flow.run(middle >> flow.map(lambda item: item, max_workers=9) >> flow.collect(), checkpoint_interval=0.05)
        self.assertEqual(sorted(job.results), list(range(3000)))
        self.assertGreater(job.report.stages["map"].workers, 1)

    def test_raw_batches_and_custom_codecs_reach_added_workers(self):
        class Forward(flow.Worker):
            codec = "raw"

            def process(self, items):
                if not hasattr(self, "granted"):
                    self.granted = self.grow(2)
                yield from items

        class Text(flow.Worker):
            def process(self, items):
                return map(str, items)

            def serialise(self, items):
                yield "\n".join(items).encode()

        class Read(flow.Worker):
            def deserialise(self, batch):
                return bytes(batch).decode().split("\n")

        numbers = flow.source(lambda number, of: range(50_000)) >> flow.stage(Forward) >> flow.stage(Text, max_workers=3, name="text")
        job = flow.run(numbers >> flow.stage(Read) >> flow.collect(), checkpoint_interval=0.05)
        self.assertEqual(sorted(map(int, job.results)), list(range(50_000)))
        self.assertEqual(job.report.stages["text"].workers, 3)

    def test_a_reader_whose_other_inputs_have_ended_waits_for_added_workers(self):
        """The reader takes part in checkpoints until the added workers' items arrive."""
        checkpoints = self.folder / "nearpath-job" / "checkpoints"

        class Late(flow.Worker):
            def input(self, port):
                for item in range(3000):
                    if item == 1000:
                        while not list(checkpoints.glob("*/complete")):
                            yield time.sleep(0.01)
                        self.grow(2)
                    yield item

        soon = flow.source(lambda number, of: [-1])
        late = flow.stage(Late) >> flow.stage(flow.Worker, max_workers=3, name="pass")
        both = flow.stage(flow.Worker, name="both").after(soon).after(late)
        job = flow.run(both >> flow.collect(), checkpoint_interval=0.05, folder=str(self.folder))
        self.assertEqual(sorted(item for item in job.results if item is not None), list(range(-1, 3000)))
        self.assertEqual(job.report.stages["pass"].workers, 3)

    def test_grow_outside_a_job_or_without_max_workers_is_refused(self):
        with self.assertRaisesRegex(RuntimeError, "outside a job"):
            flow.Worker().grow()

        class Requester(flow.Worker):
            def input(self, port):
                yield self.grow()

        with self.assertRaisesRegex(flow.JobFailed, "has `max_workers`: none: set `max_workers` of one"):
            flow.run(flow.stage(Requester) >> flow.collect())

    def test_a_stage_that_cannot_scale_out_is_refused_before_the_start(self):
        numbers = flow.source(lambda number, of: range(10), workers=2)
        by_key = flow.stage(flow.Worker, workers=2, max_workers=4, name="work").after(numbers, how="by-key")
        with self.assertRaisesRegex(ValueError, "`work` can scale out, so its edge from `source` cannot be by-key: use"):
            flow.run(by_key >> flow.collect())
        with self.assertRaisesRegex(ValueError, "no worker can request it"):
            flow.run(flow.stage(flow.Worker, max_workers=2) >> flow.collect())
        with self.assertRaisesRegex(ValueError, "reads 5 streams, the limit is 4"):
            flow.run(numbers >> flow.map(abs, max_workers=5) >> flow.collect(), fan_in=4)

    def test_workers_added_after_the_checkpoint_are_requested_again(self):
        """Workers added before the checkpoint stay. Repeated calls get their earlier results."""
        job = self.run_scaling_out(3000, worker_requests={0: 2, 2800: 1}, signals=[[2900, signal.SIGKILL]], stage="feed", checkpoint_interval=0.1, pause=0.0005)
        self.assertEqual((len(job.report.restarts), job.report.stages["work"].workers), (1, 4))
        self.assertEqual(self.granted_workers(), {0: 2, 2800: 1})


def topology():
    graph = flow.Graph(jobs.scaling_out(1, 1, ".", max_workers=3))
    return flow.Graph.topology(graph)


class ScaleOutDecisionTests(unittest.TestCase):
    """Decisions of a job, without processes and clocks."""

    def attempt(self, states=(), finished=()):
        scale_out = ScaleOut(json.dumps(topology()), states, finished, ["feed.0", "feed.1"])
        names = ["feed.0", "feed.1", "work.0", "reduce-by-key.0", "reduce-by-key.1", "collect.0", *states]
        attempt = Attempt(1, 0, finished, dict.fromkeys(names), 0.0, scale_out)
        for name in attempt.workers:
            self.report(attempt, name)
        return attempt

    def report(self, attempt, name, **message):
        attempt.receive(name, {"attempt": 1, **attempt.workers[name].message, **message}, 0.0)

    def report_no_reservations(self, attempt):
        for name in ["feed.0", "feed.1"]:
            self.report(attempt, name, reserved={"work": 0})

    def test_no_checkpoint_begins_while_streams_open(self):
        attempt = self.attempt()
        self.report_no_reservations(attempt)
        self.report(attempt, "feed.0", request=[1, "work", 1])
        self.assertEqual(attempt.start_spares(), ["work.1"])
        self.assertEqual(attempt.scale_out_message("feed.0")["scale_out"]["answer"], [1, 1])
        for name in ["work.1", "reduce-by-key.0", "reduce-by-key.1", "feed.0"]:
            self.assertFalse(attempt.begin_checkpoint(9.0, 1.0), name)
            opened = {} if name == "work.1" else {"opened": ["work.1"]}
            self.report(attempt, name, **opened)
            self.assertEqual(attempt.start_spares(), [])
        self.assertTrue(attempt.begin_checkpoint(9.0, 1.0))

    def test_no_worker_starts_during_a_checkpoint(self):
        attempt = self.attempt()
        self.report_no_reservations(attempt)
        self.assertTrue(attempt.begin_checkpoint(9.0, 1.0))
        self.report(attempt, "feed.0", request=[1, "work", 2])
        self.assertEqual(attempt.start_spares(), [])
        self.assertEqual(attempt.scale_out_message("feed.0")["scale_out"]["answer"], [1, 2], "a request does not wait for the checkpoint")
        for name in attempt.workers:
            self.report(attempt, name, saved=1)
        attempt.record_checkpoint(9.0)
        self.assertEqual(attempt.start_spares(), ["work.1", "work.2"])

    def test_a_stream_opens_when_its_peer_is_ready(self):
        attempt = self.attempt()
        self.report_no_reservations(attempt)
        self.report(attempt, "feed.0", request=[1, "work", 1])
        attempt.start_spares()
        self.assertEqual(attempt.scale_out_message("feed.0")["scale_out"]["outputs"], [])
        self.assertEqual(attempt.scale_out_message("reduce-by-key.1")["scale_out"]["inputs"], ["work.1"])
        attempt.receive("work.1", {"attempt": 1}, 0.0)
        self.assertEqual(attempt.scale_out_message("feed.0")["scale_out"]["outputs"], ["work.1"])
        self.assertEqual(attempt.scale_out_message("feed.1")["scale_out"]["outputs"], [])

    def test_reserved_workers_precede_requested_ones(self):
        attempt = self.attempt()
        self.report(attempt, "feed.0", reserved={"work": 0}, request=[1, "work", 2])
        self.assertEqual(attempt.start_spares(), [])
        self.report(attempt, "feed.1", reserved={"work": 1})
        self.assertEqual(attempt.start_spares(), ["work.1", "work.2"])
        self.assertEqual(attempt.scale_out_message("feed.0")["scale_out"]["answer"], [1, 1])

    def test_unused_workers_are_known_when_no_worker_can_request_them(self):
        attempt = self.attempt()
        self.report_no_reservations(attempt)
        self.report(attempt, "feed.0", finished=True)
        attempt.start_spares()
        self.assertEqual(attempt.scale_out_message("reduce-by-key.0")["scale_out"]["unused"], [])
        self.report(attempt, "feed.1", finished=True)
        attempt.start_spares()
        self.assertEqual(attempt.scale_out_message("reduce-by-key.0")["scale_out"]["unused"], ["work.1", "work.2"])


if __name__ == "__main__":
    unittest.main()
