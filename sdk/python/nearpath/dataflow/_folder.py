"""Where a job lies on disk, and that nothing of it stays."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from . import _temporary


@contextlib.contextmanager
def folder(asked: str | None) -> Iterator[str]:
    if asked is None:
        with _temporary.folder(_temporary.JOB) as made:
            yield made
        return
    own = os.path.join(os.path.abspath(asked), "nearpath-job")  # what else lies in the folder is not this job's
    os.makedirs(own, mode=0o700, exist_ok=True)
    with open(os.path.join(own, "lock"), "w") as lock:
        _take(lock, own)
        yield own
        shutil.rmtree(own, ignore_errors=True)  # it is through: nothing to go on from


def _take(lock: TextIO, own: str) -> None:
    """Two runs at once would write one file. The kernel lets go of it with the process; children that are forked do not have it."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise ValueError(f"another run uses {own}: end that one, or give this one a folder of its own") from None


def claim(place: str, job: str) -> str:
    """A folder belongs to one job: another one would go on from what it never did. The job's name in a store, the same each time."""
    mark, path = hashlib.sha256(job.encode()).hexdigest(), os.path.join(place, "job")
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        found, _, name = file.read().partition(" ")
        if found != mark:
            raise ValueError(f"{place} holds another job: give this one a folder of its own")
        return name
    name = secrets.token_hex(8)
    with open(f"{path}.new", "w") as file:
        file.write(f"{mark} {name}")
    os.replace(f"{path}.new", path)
    return name


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Callable[[], None]]:
    """SIGTERM ends a job as Ctrl-C does: with all its processes. What is given is to be called now and then: Python drops what a
    handler raises while it is in code of its own, a hook of fork() for one."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []

    def stop(number: int, _: object) -> None:
        came.append(number)
        look()

    def look() -> None:
        if came:
            raise KeyboardInterrupt if came[0] == signal.SIGINT else SystemExit(128 + came[0])

    own = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else Ctrl-C is the program's own affair
        own.append(signal.SIGINT)
    before = {number: signal.signal(number, stop) for number in own}
    try:
        yield look
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
