"""Workers that are started while the job runs: nothing is lost or counted twice, whoever asks, comes or goes, and when. Whoever dies:
slow_dataflow_growing.py."""

import json
import signal
import time
import unittest

import jobs_growing as jobs
from cases import OwnTemp
from jobs_elsewhere import sums

from nearpath import dataflow as flow
from nearpath.dataflow._attempt import Attempt
from nearpath.dataflow._scale_out import ScaleOut


class Growing(OwnTemp):
    def growing(self, count=4000, keys=10, every=0.1, retries=None, **how):
        """A job that is exact, whatever happens in it."""
        job = flow.run(jobs.growing(count, keys, str(self.folder), **how), every=every, retries=retries)
        self.assertEqual(dict(job.results), sums(count, keys))
        self.assertEqual(len(job.results), keys)
        return job

    def given(self):
        return {int(file.name.removeprefix("given-")): int(file.read_text()) for file in self.folder.glob("given-*")}

    def worked(self):
        return {file.name.removeprefix("worked-") for file in self.folder.glob("worked-*")}


class ScaleOutTests(Growing):
    def test_more_work_more_workers(self):
        job = self.growing(asks={100: 2, 501: 1})
        self.assertEqual(self.given(), {100: 2, 501: 1})
        self.assertEqual(self.worked(), {"work.0", "work.1", "work.2", "work.3"})
        self.assertEqual(job.report.stages["work"].workers, 4)
        self.assertEqual(job.report.stages["work"].items, 4000)

    def test_nobody_asks(self):
        job = self.growing()
        self.assertEqual((job.report.stages["work"].workers, self.worked()), (1, {"work.0"}))

    def test_not_more_than_most(self):
        self.growing(asks={100: 9, 301: 3}, most=4)
        self.assertEqual(sorted(self.given().values()), [0, 3])

    def test_whoever_asks_and_has_nothing_more_to_send(self):
        """Before its first item, and behind its last: those that it asked for come, hear that it is through, and go."""
        self.growing(count=2, asks={0: 2, 1: 2}, keys=1)
        self.assertEqual((sum(self.given().values()), len(self.worked())), (4, 5))

    def test_from_process_and_finish(self):
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
        job = flow.run(numbers >> flow.map(lambda item: item, most=9) >> flow.collect(), every=0.05)
        self.assertEqual(sorted(job.results), list(range(2000)))
        self.assertEqual(job.report.stages["map"].workers, 4)

    def test_who_was_asked_for_asks_for_others(self):
        class Middle(flow.Worker):
            def process(self, items):
                if not hasattr(self, "asked"):
                    self.asked = self.grow()
                return items

        feed = flow.stage(lambda: jobs.Feed(3000, {0: 2}, 0.0, str(self.folder), lambda item: None), name="feed")
        middle = feed >> flow.stage(Middle, most=3, name="middle")
        job = flow.run(middle >> flow.map(lambda item: item, most=9) >> flow.collect(), every=0.05)
        self.assertEqual(sorted(job.results), list(range(3000)))
        self.assertGreater(job.report.stages["map"].workers, 1)

    def test_batches_as_they_are_and_a_codec_of_ones_own(self):
        class Forward(flow.Worker):
            codec = "raw"

            def process(self, items):
                if not hasattr(self, "asked"):
                    self.asked = self.grow(2)
                yield from items

        class Text(flow.Worker):
            def process(self, items):
                return map(str, items)

            def serialise(self, items):
                yield "\n".join(items).encode()

        class Read(flow.Worker):
            def deserialise(self, batch):
                return bytes(batch).decode().split("\n")

        numbers = flow.source(lambda number, of: range(50_000)) >> flow.stage(Forward) >> flow.stage(Text, most=3, name="text")
        job = flow.run(numbers >> flow.stage(Read) >> flow.collect(), every=0.05)
        self.assertEqual(sorted(map(int, job.results)), list(range(50_000)))
        self.assertEqual(job.report.stages["text"].workers, 3)

    def test_a_reader_whose_other_inputs_have_ended(self):
        """It waits for what may still come, takes part in checkpoints meanwhile, and reads it."""
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
        late = flow.stage(Late) >> flow.stage(flow.Worker, most=3, name="pass")
        both = flow.stage(flow.Worker, name="both").after(soon).after(late)
        job = flow.run(both >> flow.collect(), every=0.05, folder=str(self.folder))
        self.assertEqual(sorted(item for item in job.results if item is not None), list(range(-1, 3000)))
        self.assertEqual(job.report.stages["pass"].workers, 3)

    def test_outside_a_job_and_without_most(self):
        with self.assertRaisesRegex(RuntimeError, "outside a job"):
            flow.Worker().grow()

        class Hopeful(flow.Worker):
            def input(self, port):
                yield self.grow()

        with self.assertRaisesRegex(flow.JobFailed, "these may: none: give one `most`"):
            flow.run(flow.stage(Hopeful) >> flow.collect())

    def test_what_cannot_grow_is_told_before_anything_starts(self):
        numbers = flow.source(lambda number, of: range(10), workers=2)
        by_key = flow.stage(flow.Worker, workers=2, most=4, name="work").after(numbers, how="by-key")
        with self.assertRaisesRegex(ValueError, "`work` can scale out, so its edge from `source` cannot be by-key: use"):
            flow.run(by_key >> flow.collect())
        with self.assertRaisesRegex(ValueError, "no worker can request it"):
            flow.run(flow.stage(flow.Worker, most=2) >> flow.collect())
        with self.assertRaisesRegex(ValueError, "reads 5 streams, the limit is 4"):
            flow.run(numbers >> flow.map(abs, most=5) >> flow.collect(), fan_in=4)

    def test_who_was_started_behind_the_checkpoint_is_asked_for_again(self):
        """And who was started before it is not: what was yielded by then is made once more, and the calls on the way get their answers."""
        job = self.growing(3000, asks={0: 2, 2800: 1}, hits=[[2900, signal.SIGKILL]], stage="feed", every=0.1, pause=0.0005)
        self.assertEqual((len(job.report.restarts), job.report.stages["work"].workers), (1, 4))
        self.assertEqual(self.given(), {0: 2, 2800: 1})


def topology():
    graph = flow.Graph(jobs.growing(1, 1, ".", most=3))
    return flow.Graph.topology(graph)


class DecisionTests(unittest.TestCase):
    """What a job decides, without processes and without a clock."""

    def attempt(self, states=(), finished=()):
        scale_out = ScaleOut(json.dumps(topology()), states, finished, ["feed.0", "feed.1"])
        names = ["feed.0", "feed.1", "work.0", "reduce-by-key.0", "reduce-by-key.1", "collect.0", *states]
        attempt = Attempt(1, 0, finished, dict.fromkeys(names), 0.0, scale_out)
        for name in attempt.workers:
            self.report(attempt, name)
        return attempt

    def report(self, attempt, name, **message):
        attempt.receive(name, {"attempt": 1, **attempt.workers[name].message, **message}, 0.0)

    def owe_nothing(self, attempt):
        for name in ["feed.0", "feed.1"]:
            self.report(attempt, name, owed={"work": 0})

    def test_no_checkpoint_begins_while_streams_open(self):
        attempt = self.attempt()
        self.owe_nothing(attempt)
        self.report(attempt, "feed.0", ask=[1, "work", 1])
        self.assertEqual(attempt.start_spares(), ["work.1"])
        self.assertEqual(attempt.scale_out_message("feed.0")["grow"]["answer"], [1, 1])
        for name in ["work.1", "reduce-by-key.0", "reduce-by-key.1", "feed.0"]:
            self.assertFalse(attempt.begin(9.0, 1.0), name)
            opened = {} if name == "work.1" else {"opened": ["work.1"]}
            self.report(attempt, name, **opened)
            self.assertEqual(attempt.start_spares(), [])
        self.assertTrue(attempt.begin(9.0, 1.0))

    def test_nobody_starts_while_a_checkpoint_is_under_way(self):
        attempt = self.attempt()
        self.owe_nothing(attempt)
        self.assertTrue(attempt.begin(9.0, 1.0))
        self.report(attempt, "feed.0", ask=[1, "work", 2])
        self.assertEqual(attempt.start_spares(), [])
        self.assertEqual(attempt.scale_out_message("feed.0")["grow"]["answer"], [1, 2], "who asks does not wait for the checkpoint")
        for name in attempt.workers:
            self.report(attempt, name, saved=1)
        attempt.completed(9.0)
        self.assertEqual(attempt.start_spares(), ["work.1", "work.2"])

    def test_streams_open_once_the_other_worker_is_there(self):
        attempt = self.attempt()
        self.owe_nothing(attempt)
        self.report(attempt, "feed.0", ask=[1, "work", 1])
        attempt.start_spares()
        self.assertEqual(attempt.scale_out_message("feed.0")["grow"]["outputs"], [])
        self.assertEqual(attempt.scale_out_message("reduce-by-key.1")["grow"]["inputs"], ["work.1"])
        attempt.receive("work.1", {"attempt": 1}, 0.0)
        self.assertEqual(attempt.scale_out_message("feed.0")["grow"]["outputs"], ["work.1"])
        self.assertEqual(attempt.scale_out_message("feed.1")["grow"]["outputs"], [])

    def test_what_was_owed_comes_before_what_is_asked_for(self):
        attempt = self.attempt()
        self.report(attempt, "feed.0", owed={"work": 0}, ask=[1, "work", 2])
        self.assertEqual(attempt.start_spares(), [])
        self.report(attempt, "feed.1", owed={"work": 1})
        self.assertEqual(attempt.start_spares(), ["work.1", "work.2"])
        self.assertEqual(attempt.scale_out_message("feed.0")["grow"]["answer"], [1, 1])

    def test_who_never_comes_is_known_once_nobody_can_ask(self):
        attempt = self.attempt()
        self.owe_nothing(attempt)
        self.report(attempt, "feed.0", finished=True)
        attempt.start_spares()
        self.assertEqual(attempt.scale_out_message("reduce-by-key.0")["grow"]["never"], [])
        self.report(attempt, "feed.1", finished=True)
        attempt.start_spares()
        self.assertEqual(attempt.scale_out_message("reduce-by-key.0")["grow"]["never"], ["work.1", "work.2"])


if __name__ == "__main__":
    unittest.main()
