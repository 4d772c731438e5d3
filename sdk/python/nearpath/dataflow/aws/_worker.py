"""A worker's process: `python -m nearpath.dataflow.aws._worker UNTIL`, with orders on stdin, until that time of the monotonic clock."""

import sys
import time

from .. import elsewhere


def main() -> int:
    until = float(sys.argv[1])
    return elsewhere.run(sys.stdin.buffer.read(), left=lambda: until - time.monotonic())


if __name__ == "__main__":
    sys.exit(main())
