"""Starts processes of local workers: by fork, from a fork server, or as new interpreters."""

import abc
import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, Literal, TypeAlias, get_args

from ._graph import Stage
from ._local_worker import InheritedFiles, WorkerStart, run_process

StartMethod: TypeAlias = Literal["fork", "forkserver", "spawn"]
# Libraries whose threads do not survive fork(), while the locks that the threads hold do.
FORK_UNSAFE_LIBRARIES = ("polars", "torch", "tensorflow", "jax", "grpc", "duckdb", "xgboost", "lightgbm", "ray")
# Libraries whose native threads are known to be safe: they install handlers of fork().
FORK_SAFE_LIBRARIES = ("numpy", "pyarrow")


class LocalProcess(abc.ABC):
    """One process of a worker. `sentinel` is a descriptor that is readable after its end."""

    pid: int
    sentinel: int

    @abc.abstractmethod
    def exit_code(self, wait: bool = False) -> int | None:
        """Returns the exit code (below 0: a signal), or None while the process runs."""

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    @abc.abstractmethod
    def close(self) -> None:
        """Releases the sentinel after the end."""


class ForkedProcess(LocalProcess):
    """A forked process, so closures and loaded modules are available in it."""

    def __init__(self, pid: int) -> None:
        self.pid, self.sentinel = pid, os.pidfd_open(pid)
        self._code: int | None = None

    def exit_code(self, wait: bool = False) -> int | None:
        if self._code is None:
            pid, status = os.waitpid(self.pid, 0 if wait else os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def close(self) -> None:
        os.close(self.sentinel)


class ImportingProcess(LocalProcess):
    """A process that imports what the worker's code needs."""

    def __init__(self, process: BaseProcess) -> None:
        assert process.pid is not None
        # `exitcode` reaps a spawned process only when it is read, so its pid is still its own.
        self.pid, self._process = process.pid, process
        self._pidfd = None if _is_server_child(process) else os.pidfd_open(process.pid)
        self.sentinel = process.sentinel if self._pidfd is None else self._pidfd

    def exit_code(self, wait: bool = False) -> int | None:
        if wait:
            self._process.join()
        return self._process.exitcode

    def close(self) -> None:
        if self._pidfd is not None:  # the other sentinel belongs to multiprocessing
            os.close(self._pidfd)


def _is_server_child(process: BaseProcess) -> bool:
    return isinstance(process, multiprocessing.get_context("forkserver").Process)


def fork(start: WorkerStart, connection: socket.socket, files: InheritedFiles, close_others: Callable[[], None]) -> LocalProcess:
    parent = os.getpid()
    sys.stdout.flush(), sys.stderr.flush()  # or the child writes the buffer again
    pid = os.fork()
    if pid == 0:
        close_others()
        run_process(start, connection, files, parent)
    return ForkedProcess(pid)


def start_importing(method: StartMethod, start: WorkerStart, connection: socket.socket, files: InheritedFiles) -> LocalProcess:
    context: Any = multiprocessing.get_context(method)
    process = context.Process(target=_Entry(start, connection, files, os.getpid() if method == "spawn" else None))
    process.start()
    return ImportingProcess(process)


class _Entry:
    """The first call in an importing process."""

    def __init__(self, start: WorkerStart, connection: socket.socket, files: InheritedFiles, parent: int | None) -> None:
        self._start, self._connection, self._parent = start, connection, parent
        self._files: Any = files  # on arrival: what duplicates the descriptors

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_files": (DupFd(self._files.heartbeats), DupFd(self._files.stacks))}

    def __call__(self) -> None:
        heartbeats, stacks = self._files
        files = InheritedFiles(heartbeats.detach(), stacks.detach())
        run_process(self._start, self._connection, files, self._parent or os.getppid())


def prepare(method: str, stages: Mapping[str, Stage]) -> None:
    """Warns of threads before a fork. Raises ValueError for an unknown method, and for code that importing processes cannot get."""
    if method not in get_args(StartMethod):
        raise ValueError(f"invalid start method {method!r}: expected {', '.join(get_args(StartMethod))}")
    if method == "fork":
        return _warn_of_threads()
    if faults := [fault for name, stage in stages.items() if (fault := _pickling_fault(name, stage))]:
        advice = "define functions and classes at the top level of a module and bind values by functools.partial, or use start_method='fork'"
        raise ValueError(f"workers started by {method!r} import their code: {'; '.join(faults)}: {advice}")


def _pickling_fault(name: str, stage: Stage) -> str | None:
    try:
        ForkingPickler.dumps(stage.worker)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return f"stage {name} cannot be pickled ({error})"
    return None


def _warn_of_threads() -> None:
    """Warns before a fork if this process has threads, because a lock that one of them holds stays locked in a worker."""
    python_threads = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if threads := describe_threads(len(os.listdir("/proc/self/task")) - 1, python_threads, sys.modules):
        text = f"local workers are forked while this process has {threads}: a lock that a thread holds stays locked in a worker"
        warnings.warn(f"{text}. Start the threads in the workers, or use start_method='forkserver'", RuntimeWarning, stacklevel=4)


def describe_threads(count: int, python_threads: Iterable[str], modules: Iterable[str]) -> str | None:
    """Returns the threads that make a fork unsafe, or None. `count` includes those of Python."""
    names, unsafe = list(python_threads), [name for name in FORK_UNSAFE_LIBRARIES if name in modules]
    if not count:
        return None
    if unsafe:
        return f"{count} other threads, perhaps of {', '.join(unsafe)}"
    if names:
        return f"{count} other threads ({', '.join(names)})"
    return None if any(name in modules for name in FORK_SAFE_LIBRARIES) else f"{count} other threads, of native code"
