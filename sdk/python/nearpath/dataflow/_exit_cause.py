"""Describes how a worker's process ended, with the kernel's count of kills for lack of memory."""

import contextlib
import pathlib
import signal
import threading

PROC, CGROUPS = pathlib.Path("/proc"), pathlib.Path("/sys/fs/cgroup")
PERHAPS_MEMORY = "killed by SIGKILL (perhaps by the kernel for lack of memory)"


class OutOfMemoryKills:
    """Counts the kernel's kills in the cgroups of processes, in cgroup v1 and v2.

    `begin` must precede the kill. The kernel counts a kill before it sends the signal.
    """

    def __init__(self, proc: pathlib.Path = PROC, cgroups: pathlib.Path = CGROUPS) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._known: dict[pathlib.Path, int] = {}
        self._lock = threading.Lock()

    def begin(self, pid: int) -> pathlib.Path | None:
        """Returns the cgroup of a process that has just started, and remembers its kills so far."""
        with self._lock:
            if (group := self._find_group(pid)) is not None:
                self._known.setdefault(group, _read_kills(group))
            return group

    def describe_exit(self, code: int, group: pathlib.Path | None) -> str:
        """Returns "" for success, and otherwise the cause of an end. `group` is the cgroup at the start."""
        if code == -signal.SIGKILL:
            return f"killed by the kernel: {_describe_limit(group)}" if group and self._take_kill(group) else PERHAPS_MEMORY
        if code:
            return f"signal {-code}" if code < 0 else f"exit code {code}"
        return ""

    def _take_kill(self, group: pathlib.Path) -> bool:
        """Returns whether the kernel has killed a process that is not described yet."""
        with self._lock:
            is_new = _read_kills(group) > self._known[group]
            self._known[group] += is_new
            return is_new

    def _find_group(self, pid: int) -> pathlib.Path | None:
        """Returns the folder of a process's cgroup that limits memory."""
        with contextlib.suppress(OSError):
            lines = [line.split(":", 2) for line in (self._proc / str(pid) / "cgroup").read_text().splitlines()]
            folders = [self._folder(controllers, path) for _, controllers, path in lines]
            return next((folder for folder in folders if folder is not None and _events(folder).exists()), None)
        return None

    def _folder(self, controllers: str, path: str) -> pathlib.Path | None:
        if controllers and "memory" not in controllers.split(","):
            return None
        root = self._cgroups / "memory" if controllers else self._cgroups
        inner = root / path.removesuffix(" (deleted)").lstrip("/")
        return inner if inner.exists() else root  # a container may see its own cgroup as the root, under the path of the host


def _describe_limit(group: pathlib.Path) -> str:
    limits = [limit for folder in (group, *group.parents) if (limit := _read_limit(folder)) is not None]
    if not limits:
        return f"the machine had no memory left (oom_kill in {_events(group)})"
    return f"the memory limit of {min(limits) / (1 << 20):.0f} MiB was reached (oom_kill in {_events(group)})"


def _events(group: pathlib.Path) -> pathlib.Path:
    v2 = group / "memory.events"
    return v2 if v2.exists() else group / "memory.oom_control"


def _read_kills(group: pathlib.Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        counts = dict(line.split() for line in _events(group).read_text().splitlines())
        return int(counts.get("oom_kill", 0))
    return 0


def _read_limit(group: pathlib.Path) -> int | None:
    """Returns the limit in bytes. v1 has the largest multiple of a page for none."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limit = int((group / name).read_text())
            return limit if limit < 1 << 60 else None
    return None
