"""Describes what a process of this machine does that makes no progress."""

import contextlib
import os
import pathlib
import time

from ._local_worker import STACKS_SIGNAL

# Seconds for a process to write its stacks, and between two looks at the file.
STACKS_TIMEOUT = 2.0
STACKS_POLL_INTERVAL = 0.05
MAX_STACKS_BYTES = 16 << 10
STOPPED_STATES = {"T": "its process is stopped by a signal (SIGSTOP or SIGTSTP)", "t": "its process is stopped by a debugger"}


def describe_wait(pid: int, proc: pathlib.Path = pathlib.Path("/proc")) -> tuple[str, bool]:
    """Returns the cause of a process's wait in the kernel, "" if there is none, and whether the process is stopped."""
    with contextlib.suppress(OSError):
        state = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        if state in STOPPED_STATES:
            return STOPPED_STATES[state], True
        function = (proc / str(pid) / "wchan").read_text().strip()
        return (f"its process waits in the kernel ({function})", False) if function not in ("", "0") else ("", False)
    return "", False


class StackFile:
    """A file in memory into which all workers write their Python stacks at a signal."""

    def __init__(self) -> None:
        self._file = os.memfd_create("stacks")

    def fileno(self) -> int:
        return self._file

    def dump(self, pid: int) -> str:
        """Returns the stacks of a process that has a handler, as far as it writes them in time."""
        before = size = os.fstat(self._file).st_size
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, STACKS_SIGNAL)
        end = time.monotonic() + STACKS_TIMEOUT
        while time.monotonic() < end:
            time.sleep(STACKS_POLL_INTERVAL)
            last, size = size, os.fstat(self._file).st_size
            if size == last > before:  # nothing marks the end of the stacks
                break
        return shorten_stacks(os.pread(self._file, min(size - before, MAX_STACKS_BYTES), before).decode(errors="replace"))

    def close(self) -> None:
        os.close(self._file)


def shorten_stacks(text: str) -> str:
    """Removes the frames from which the worker was started, and the thread that talks to the job."""
    threads = [thread.partition(" in _run_worker\n") for thread in text.split("\n\n") if " in _listen\n" not in f"{thread}\n"]
    return "\n\n".join(frames.rpartition("\n")[0] if marker else frames for frames, marker, _ in threads).rstrip()
