"""Items of slow producers reach their consumers, without a full batch and without a checkpoint."""

import os
import time
import unittest

from cases import TemporaryFolderCase

from nearpath import dataflow as flow


class EchoSource(flow.Worker):
    """Yields each item after its consumer has seen the one before."""

    def __init__(self, seen, count, flushes=False):
        self.seen, self.count, self.flushes = seen, count, flushes

    def input(self, port):
        for item in range(self.count):
            yield item, item
            if self.flushes:
                self.flush()
            while not os.path.exists(f"{self.seen}-{item}"):
                time.sleep(0.002)


class RawSource(EchoSource):
    """Encodes items itself."""

    def serialise(self, items):
        yield from super().serialise(items)


class LingerTests(TemporaryFolderCase):
    """Without a timer each source would wait forever: no checkpoint is due in time."""

    def run_echo(self, make_source, count=5, **edge):
        seen = str(self.folder / "seen")

        def see(item):
            open(f"{seen}-{item[0]}", "w").close()
            return item[0]

        source = flow.stage(lambda: make_source(seen, count), name="echo")
        seeing = flow.map(see, name="see").after(source, **edge)
        return flow.run(seeing >> flow.collect(), checkpoint_interval=1000)

    def test_each_item_arrives_after_the_linger(self):
        self.assertEqual(self.run_echo(EchoSource).results, list(range(5)))

    def test_each_item_arrives_at_the_owner_of_its_key(self):
        self.assertEqual(self.run_echo(EchoSource, how="by-key").results, list(range(5)))

    def test_each_item_arrives_in_a_broadcast_without_linger(self):
        self.assertEqual(self.run_echo(EchoSource, how="broadcast", linger=0.0).results, list(range(5)))

    def test_a_flush_sends_items_of_an_edge_that_waits_for_full_batches(self):
        source = lambda seen, count: EchoSource(seen, count, flushes=True)
        self.assertEqual(self.run_echo(source, linger=None).results, list(range(5)))

    def test_a_flush_sends_items_that_the_worker_encodes_itself(self):
        source = lambda seen, count: RawSource(seen, count, flushes=True)
        self.assertEqual(self.run_echo(source).results, list(range(5)))

    def test_items_that_the_worker_encodes_itself_are_sent_with_the_first_one_after_the_linger(self):
        """Python's thread encodes them, so an item waits for the next one, but for no full chunk."""

        class PausingSource(RawSource):
            def input(self, port):
                yield 0, 0
                time.sleep(0.1)  # longer than the linger
                yield 1, 1
                while not os.path.exists(f"{self.seen}-1"):
                    time.sleep(0.002)

        self.assertEqual(self.run_echo(PausingSource).results, [0, 1])

    def test_an_invalid_linger_is_refused(self):
        with self.assertRaisesRegex(ValueError, "invalid linger of the edge from `echo` to `see`"):
            self.run_echo(EchoSource, linger=-1.0)


if __name__ == "__main__":
    unittest.main()
