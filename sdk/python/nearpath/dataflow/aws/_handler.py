"""The function's side: an invocation is a worker, in a process of its own."""

import contextlib
import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

# Seconds that are left for clearing away: Lambda throws an environment away that it has to end itself.
CLEANUP_GRACE = 1.0
# A file of the package that lists, a line each, the modules whose jobs may be run. Packages made otherwise may have none.
MODULES = "nearpath-modules"
EXIT_REASONS = {0: "", 1: "it failed", 3: "it lost its job, or a worker that it streams with"}
# linux/prctl.h: who has lost its parent becomes this process's child.
PR_SET_CHILD_SUBREAPER = 36


class Context(Protocol):
    """Lambda's data of an invocation."""

    def get_remaining_time_in_millis(self) -> int: ...


def handler(event: Any, context: Context) -> dict[str, str]:
    """Runs the worker that `event` has the orders of, and says how it ended: "" when it ended well.

    What it prints goes to the function's log. Nothing of it stays for the next worker in the same environment: no process, no file in /tmp.
    """
    end = time.monotonic() + context.get_remaining_time_in_millis() / 1000
    if not isinstance(event, Mapping) or not {"version", "worker", "job"} <= event.keys():
        raise ValueError("these are no orders for a worker: nearpath.dataflow invokes this function, with on=aws.Lambda(…)")
    _check(event.get("code"))
    with _clean_folder() as folder:
        return {"worker": str(event["worker"]), "ended": _run(json.dumps(event).encode(), folder, end - CLEANUP_GRACE)}


def _check(code: Any) -> None:
    """Orders name code: who may invoke the function runs the jobs that were packed, and not all that Python has, with its role."""
    if not isinstance(code, Mapping):
        return  # nothing is run
    module = str(code.get("module"))
    try:
        known = pathlib.Path(os.environ.get("LAMBDA_TASK_ROOT", ""), MODULES).read_text().splitlines()
    except FileNotFoundError:
        return
    if module.partition(".")[0] not in known:
        raise PermissionError(f"only {', '.join(known)} may be run here, not {module!r}: name it with --code when you pack the function")


def _run(orders: bytes, folder: str, end: float) -> str:
    """Runs the worker until `end` and describes its end."""
    with subprocess.Popen(_command(end), stdin=subprocess.PIPE, cwd=folder, env=_environment(folder)) as child:
        try:
            child.communicate(orders, max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            return "it was still at work when the function's time was up"
    code = child.returncode
    return (
        f"it died of {signal.Signals(-code).name}{_kill_reason(-code)}" if code < 0 else EXIT_REASONS.get(code, f"it ended with exit code {code}")
    )


def _kill_reason(number: int) -> str:
    memory = os.environ.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
    return f": {memory} MB of memory may not be enough" if number == signal.SIGKILL and memory else ""


def _command(end: float) -> list[str]:
    return [sys.executable, "-m", "nearpath.dataflow.aws._worker", f"{end:.3f}"]


def _environment(folder: str) -> dict[str, str]:
    """The worker finds what this process finds: its code is not in the folder that it starts in. What it prints is in the log at once."""
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1", "TMPDIR": folder, "HOME": folder}
    return {**os.environ, **own}


# What a worker leaves.


@contextlib.contextmanager
def _clean_folder() -> Iterator[str]:
    """A folder for a worker. After it there are no processes and no temporary files but those that were there before."""
    children, files = set(_children()), _files()
    folder = tempfile.mkdtemp(prefix="worker-")
    # A process that a worker has detached comes to this one, to be ended, too.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield folder
    finally:
        _end(children)
        # Elsewhere than on Lambda, what is new in the folder of temporary files may be anybody's.
        _remove(_files() - files if "AWS_LAMBDA_RUNTIME_API" in os.environ else {folder})


def _end(kept: set[int]) -> None:
    """All other children, until there are none: those of a process that has ended come after it."""
    while children := set(_children()) - kept:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _children() -> Iterator[int]:
    """Yields the children's process ids from /proc/PID/stat (proc(5))."""
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            stat = pathlib.Path("/proc", entry, "stat").read_text()
            if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                yield int(entry)


def _files() -> set[str]:
    folder = tempfile.gettempdir()
    return {os.path.join(folder, name) for name in os.listdir(folder)}


def _remove(paths: set[str]) -> None:
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):  # how the worker ended is told all the same
                os.unlink(path)
