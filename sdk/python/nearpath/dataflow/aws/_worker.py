"""Runs a worker until a time of the monotonic clock: `python -m nearpath.dataflow.aws._worker UNTIL`, with orders on stdin."""

import os
import sys
import time

from .. import remote_worker


def main() -> int:
    until = float(sys.argv[1])
    return remote_worker.run(sys.stdin.buffer.read(), left=lambda: until - time.monotonic())


if __name__ == "__main__":
    code = main()
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)  # does not wait for threads of the worker's code
