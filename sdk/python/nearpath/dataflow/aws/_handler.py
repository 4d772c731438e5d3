"""Handles invocations in the function. Each is a worker in its own process."""

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

# Seconds for the cleanup. Lambda discards an environment after a timeout.
CLEANUP_GRACE = 1.0
# The package's file with the modules whose jobs may be run, one per line. Other packages may lack it.
MODULES = "nearpath-modules"
EXIT_REASONS = {0: "", 1: "it failed", 3: "it lost its job or a peer"}
# linux/prctl.h: orphaned descendants become children of this process.
PR_SET_CHILD_SUBREAPER = 36


class Context(Protocol):
    """Lambda's data of an invocation."""

    def get_remaining_time_in_millis(self) -> int: ...


def handler(event: Any, context: Context) -> dict[str, str]:
    """Runs the worker whose orders are `event`, and returns its end: "" after success.

    Its output goes to the function's log. Its processes and its files in /tmp are removed before the environment's next worker.
    """
    end = time.monotonic() + context.get_remaining_time_in_millis() / 1000
    if not isinstance(event, Mapping) or not {"version", "worker", "job"} <= event.keys():
        raise ValueError("the event contains no orders for a worker: run a job with on=aws.Lambda(…)")
    _check(event.get("code"))
    with _clean_folder() as folder:
        return {"worker": str(event["worker"]), "ended": _run(json.dumps(event).encode(), folder, end - CLEANUP_GRACE)}


def _check(code: Any) -> None:
    """Raises PermissionError for code outside the package, because invokers must not gain the role's rights."""
    if not isinstance(code, Mapping):
        return  # without code nothing is run
    module = str(code.get("module"))
    try:
        known = pathlib.Path(os.environ.get("LAMBDA_TASK_ROOT", ""), MODULES).read_text().splitlines()
    except FileNotFoundError:
        return
    if module.partition(".")[0] not in known:
        raise PermissionError(f"only {', '.join(known)} may be run here, not {module!r}: add it with --code when you package the function")


def _run(orders: bytes, folder: str, end: float) -> str:
    """Runs the worker until `end` and describes its end."""
    with subprocess.Popen(_command(end), stdin=subprocess.PIPE, cwd=folder, env=_environment(folder)) as child:
        try:
            child.communicate(orders, max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            return "it was still running at the function's timeout"
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
    """Returns the worker's environment: this process's module path, unbuffered output and its own folder."""
    own = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1", "TMPDIR": folder, "HOME": folder}
    return {**os.environ, **own}


# Cleanup after a worker.


@contextlib.contextmanager
def _clean_folder() -> Iterator[str]:
    """Makes a folder for a worker. Afterwards ends new processes and removes new temporary files."""
    children, files = set(_children()), _files()
    folder = tempfile.mkdtemp(prefix="worker-")
    # Detached processes of a worker become children of this one, so that they are ended, too.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield folder
    finally:
        _end(children)
        # Outside Lambda, new temporary files may belong to other processes.
        _remove(_files() - files if "AWS_LAMBDA_RUNTIME_API" in os.environ else {folder})


def _end(kept: set[int]) -> None:
    """Ends all other children. Repeats, because orphans of an ended process become children."""
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
            with contextlib.suppress(OSError):  # the worker's end is reported anyway
                os.unlink(path)
