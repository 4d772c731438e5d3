"""Folders that go with the process that made them, however it ends.

Each is locked by its process for as long as that lives: the kernel lets go of the lock with the last process that has it, forked
children included. Making a folder removes those without a holder.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator

WORKER, JOB = "nearpath-worker-", "nearpath-dataflow-"
_made: set[str] = set()
os.register_at_fork(after_in_child=_made.clear)  # a place may fork its workers from the job's process


@contextlib.contextmanager
def folder(kind: str) -> Iterator[str]:
    """Makes a folder for this process."""
    sweep(kind)
    path, lock = _make(f"{kind}{os.getpid()}-")
    _made.add(path)
    try:
        yield path
    finally:
        _remove(path)
        os.close(lock)


def remove_all() -> None:
    """Those of this process, which is about to end."""
    for path in list(_made):
        _remove(path)


def sweep(kind: str) -> None:
    """Removes what processes of this user that were killed have left."""
    with os.scandir(tempfile.gettempdir()) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(kind)]
    for path in paths:
        with contextlib.suppress(OSError):  # already removed, or of another user
            _sweep(path)


def _make(prefix: str) -> tuple[str, int]:
    """Somebody may take it for one that was left, until it is locked: then it goes, and another one is made."""
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        with contextlib.suppress(FileNotFoundError):
            lock = _open(path)
            with contextlib.suppress(OSError):  # without locks no other process removes it
                fcntl.flock(lock, fcntl.LOCK_EX)
            if os.path.exists(path):
                return path, lock
            os.close(lock)


def _sweep(path: str) -> None:
    lock = _open(path)
    try:
        if os.fstat(lock).st_uid == os.getuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _open(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


def _remove(path: str) -> None:
    _made.discard(path)
    shutil.rmtree(path, ignore_errors=True)
