"""The line on a terminal that says how far a job is."""

import shutil
import sys

from ._report import Progress

REPAINT = 0.5


class Screen:
    """One line on stderr; `shows`: None where it is a terminal."""

    def __init__(self, shows: bool | None, total: int | None) -> None:
        self._shows = sys.stderr.isatty() if shows is None else shows
        self._progress, self._painted = Progress(total), 0.0

    def show(self, seconds: float, made: int, finished: int, workers: int) -> None:
        """Not more often than an eye follows."""
        if not self._shows or seconds < self._painted + REPAINT:
            return
        self._painted = seconds
        width = shutil.get_terminal_size().columns
        line = self._progress.line(seconds, made, finished, workers, width)
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._shows:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
