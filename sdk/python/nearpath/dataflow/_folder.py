"""Manages a job's folder on disk and its removal."""

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
def folder(requested: str | None) -> Iterator[str]:
    if requested is None:
        with _temporary.folder(_temporary.JOB) as made:
            yield made
        return
    own = os.path.join(os.path.abspath(requested), "nearpath-job")  # other files in the folder are not the job's
    os.makedirs(own, mode=0o700, exist_ok=True)
    with open(os.path.join(own, "lock"), "w") as lock:
        _lock(lock, own)
        yield own
        shutil.rmtree(own, ignore_errors=True)  # a finished job is never resumed


def _lock(lock: TextIO, own: str) -> None:
    """Locks the folder for this run. The kernel releases the lock with the process, and forked children do not have it."""
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise ValueError(f"another run uses {own}: end it, or choose another folder") from None


def claim(job_folder: str, job: str) -> str:
    """Binds the folder to a job and returns the job's constant name in a store. Raises ValueError for another job's folder."""
    mark, path = hashlib.sha256(job.encode()).hexdigest(), os.path.join(job_folder, "job")
    with contextlib.suppress(FileNotFoundError), open(path) as file:
        found, _, name = file.read().partition(" ")
        if found != mark:
            raise ValueError(f"{job_folder} holds another job: choose another folder")
        return name
    name = secrets.token_hex(8)
    with open(f"{path}.new", "w") as file:
        file.write(f"{mark} {name}")
    os.replace(f"{path}.new", path)
    return name


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[Callable[[], None]]:
    """Makes SIGTERM and SIGINT end the job with all its processes. Yields a check to call regularly.

    Python drops an exception of a signal handler that interrupts a callback, such as a hook of fork(). The check raises it later.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    received: list[int] = []

    def stop(number: int, _: object) -> None:
        received.append(number)
        check_signals()

    def check_signals() -> None:
        if received:
            raise KeyboardInterrupt if received[0] == signal.SIGINT else SystemExit(128 + received[0])

    own = [signal.SIGTERM]
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the program handles Ctrl-C itself
        own.append(signal.SIGINT)
    previous_handlers = {number: signal.signal(number, stop) for number in own}
    try:
        yield check_signals
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
