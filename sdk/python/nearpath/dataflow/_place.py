"""Where a job lies on disk, and that nothing of it stays."""

import contextlib
import os
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def folder(asked: str | None) -> Iterator[str]:
    if asked is None:
        made = tempfile.mkdtemp(prefix="nearpath-dataflow-")
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)
        return
    own = os.path.join(os.path.abspath(asked), "nearpath-job")  # what else lies in the folder is not this job's
    os.makedirs(own, mode=0o700, exist_ok=True)
    yield own
    shutil.rmtree(own, ignore_errors=True)  # it is through: nothing to go on from


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """SIGTERM ends a job as Ctrl-C does: with all its processes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
