"""A worker's process: `python -m nearpath.dataflow.aws._worker UNTIL`, with orders on stdin, until that time of the monotonic clock."""

import os
import sys
import time

from .. import elsewhere


def main() -> int:
    until = float(sys.argv[1])
    return elsewhere.run(sys.stdin.buffer.read(), left=lambda: until - time.monotonic())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)  # threads of the worker's code do not hold it up
