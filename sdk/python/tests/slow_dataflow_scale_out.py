"""Jobs that add workers lose and repeat nothing despite deaths. `make test-jobs` runs these."""

import os
import pathlib
import random
import signal
import threading
import unittest

from test_dataflow_scale_out import ScaleOutCase


class ScaleOutDeathTests(ScaleOutCase):
    def test_random_deaths_leave_the_sums_exact(self):
        for seed in range(6):
            with self.subTest(seed=seed):
                signal.alarm(self.seconds)
                self.folder, draw = self.new_folder(), random.Random(seed)
                signals = [[draw.randrange(3000), signal.SIGKILL] for _ in range(3)]
                worker_requests = {draw.randrange(3000): draw.randrange(1, 4) for _ in range(3)}
                stage, interval = draw.choice(["feed", "work", "work", "reduce"]), draw.choice([0.03, 0.1, 0.3])
                job = self.run_scaling_out(3000, worker_requests=worker_requests, signals=signals, stage=stage, checkpoint_interval=interval, pause=0.0003, retries=5)
                self.assertGreaterEqual(len(job.report.restarts), 1)
                self.assertEqual(sum(self.granted_workers().values()) + 1, job.report.stages["work"].workers)

    def test_random_kills_during_scale_out_leave_the_sums_exact(self):
        """Kills random children of this process at random times."""
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
            self.run_scaling_out(6000, worker_requests={number: 1 for number in range(0, 5000, 1000)}, checkpoint_interval=0.05, pause=0.0004, retries=9)
        finally:
            stop.set()
            killer.join()


if __name__ == "__main__":
    unittest.main()
