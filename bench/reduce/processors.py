"""A processor for each worker on a machine that has fewer: all of them are slower, and so is everything else.

Where time runs so many times slower for workers, network and stores alike, what they do to each other is as it was (Gupta et al., To
Infinity and Beyond: Time-Warped Network Emulation, NSDI 2006). Each worker gets a control group with its share of a processor.
"""

import glob
import os

FOLDER = "/sys/fs/cgroup/cpu"  # version 1 of control groups
PERIOD = 100_000  # microseconds


class Slowed:
    """Every process that is forked from here on has 1/`slow` of a processor, at most a hundredth part is possible."""

    def __init__(self, slow: float) -> None:
        if not os.path.exists(f"{FOLDER}/cpu.cfs_quota_us"):
            raise OSError(f"{FOLDER} has no quotas of processor time: mount the `cpu` controller of cgroup v1 there, or leave --slow out")
        self._quota = max(1000, round(PERIOD / slow))
        self._folder = f"{FOLDER}/nearpath-reduce-{os.getpid()}"
        os.mkdir(self._folder)
        os.register_at_fork(after_in_child=self._join)

    def _join(self) -> None:
        own = f"{self._folder}/{os.getpid()}"
        os.mkdir(own)
        for name, value in (("cpu.cfs_period_us", PERIOD), ("cpu.cfs_quota_us", self._quota), ("cgroup.procs", 0)):
            with open(f"{own}/{name}", "w") as file:
                file.write(str(value))

    def close(self) -> None:
        """Once all of them have ended."""
        for folder in [*glob.glob(f"{self._folder}/*/"), self._folder]:
            os.rmdir(folder)
