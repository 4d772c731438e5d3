"""Workers that are started while the job runs: nothing is lost or counted twice, whoever dies. `make test-jobs` runs these."""

import os
import pathlib
import random
import signal
import threading
import unittest

from test_dataflow_growing import Growing


class Deaths(Growing):
    def test_whoever_dies_in_several_seeds(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                signal.alarm(self.seconds)
                self.folder, draw = self.new_folder(), random.Random(seed)
                hits = [[draw.randrange(3000), signal.SIGKILL] for _ in range(3)]
                asks = {draw.randrange(3000): draw.randrange(1, 4) for _ in range(3)}
                stage, every = draw.choice(["feed", "work", "work", "reduce"]), draw.choice([0.03, 0.1, 0.3])
                job = self.growing(3000, asks=asks, hits=hits, stage=stage, every=every, pause=0.0003, retries=5)
                self.assertGreaterEqual(len(job.report.restarts), 1)
                self.assertEqual(sum(self.given().values()) + 1, job.report.stages["work"].workers)

    def test_killed_from_outside_while_it_grows(self):
        """Whichever process, at any moment: of those that this one has started."""
        draw, stop = random.Random(5), threading.Event()

        def kill():
            for _ in range(5):
                if stop.wait(draw.uniform(0.1, 0.4)):
                    return
                children = pathlib.Path("/proc/self/task").glob("*/children")
                pids = [int(pid) for file in children for pid in file.read_text().split()]
                if pids:
                    os.kill(draw.choice(pids), signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            self.growing(6000, asks={number: 1 for number in range(0, 5000, 1000)}, every=0.05, pause=0.0004, retries=9)
        finally:
            stop.set()
            killer.join()


if __name__ == "__main__":
    unittest.main()
