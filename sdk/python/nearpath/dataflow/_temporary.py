"""Makes temporary folders that are removed after the end of their process, also after a kill.

A process locks its folder. The kernel releases the lock with the last process that holds it, forked children included. Making a
folder removes unlocked ones.
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
    """Removes the folders of this process before its exit."""
    for path in list(_made):
        _remove(path)


def sweep(kind: str) -> None:
    """Removes folders of this user's killed processes."""
    with os.scandir(tempfile.gettempdir()) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(kind)]
    for path in paths:
        with contextlib.suppress(OSError):  # already removed, or of another user
            _sweep(path)


def _make(prefix: str) -> tuple[str, int]:
    """Makes and locks a folder. Repeats if another process removed it before the lock."""
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
