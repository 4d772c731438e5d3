"""Shows a job's progress on a terminal."""

import shutil
import sys

from ._report import Progress

REPAINT_INTERVAL = 0.5


class ProgressLine:
    """Shows one line on stderr. `is_shown` None: only on terminals."""

    def __init__(self, is_shown: bool | None, total: int | None) -> None:
        self._is_shown = sys.stderr.isatty() if is_shown is None else is_shown
        self._progress, self._painted_at = Progress(total), 0.0

    def show(self, seconds: float, made: int, finished: int, workers: int) -> None:
        """Shows the progress, at most once per REPAINT_INTERVAL."""
        if not self._is_shown or seconds < self._painted_at + REPAINT_INTERVAL:
            return
        self._painted_at = seconds
        width = shutil.get_terminal_size().columns
        line = self._progress.line(seconds, made, finished, workers, width)
        sys.stderr.write(f"\r\x1b[K{line}")
        sys.stderr.flush()

    def clear(self) -> None:
        if self._is_shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
