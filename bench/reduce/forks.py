"""Workers as processes that are forked, each on its machine: as functions that are warm, they have loaded their code before they are called."""

import ctypes
import gc
import os
import traceback
from collections.abc import Callable
from functools import partial

import account
from work import Job

Task = Callable[[int], object]
CLONE_NEWNET = 0x40000000


class Machines:
    """Network namespaces, one a machine; without any, workers stay where they are. Workers are dealt out to them."""

    def __init__(self, paths: list[str]) -> None:
        self._paths, self._dealt = paths, 0
        self._libc = ctypes.CDLL(None, use_errno=True)

    def deal(self) -> str | None:
        self._dealt += 1
        return self._paths[self._dealt % len(self._paths)] if self._paths else None

    def enter(self, path: str | None) -> None:
        if path is None:
            return
        namespace = os.open(path, os.O_RDONLY)
        if self._libc.setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        os.close(namespace)


class Forks:
    """What one job has started."""

    def __init__(self, out: str, machines: Machines) -> None:
        self.out, self._machines = out, machines
        gc.freeze()  # or each child's collector looks through what is here, and copies its pages

    def start(self, name: str, task: Callable[[], object]) -> int:
        """Runs the task in a new process; gives its id."""
        machine, pid = self._machines.deal(), os.fork()
        if pid:
            return pid
        code = 1
        try:
            self._machines.enter(machine)
            code = int(task() or 0)  # type: ignore[call-overload]
            account.note(self.out, account.spent(name, account.began()))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def run(self, job: Job, map_one: Task, reduce_one: Task, is_staged: bool = False) -> None:
        """All workers at once; or, staged, reducers once all mappers have ended, so that nobody is paid for waiting for them."""
        running = {self.start(f"map.{number}", partial(map_one, number)) for number in range(job.mappers)}
        if is_staged:
            self.join(running)
        running |= {self.start(f"reduce.{number}", partial(reduce_one, number)) for number in range(job.reducers)}
        self.join(running)

    def join(self, running: set[int]) -> None:
        """Until all have ended. One that failed ends the whole job."""
        while running:
            pid, status = os.wait()
            running.discard(pid)
            if status:
                for other in running:
                    os.kill(other, 9)
                raise RuntimeError(f"a worker ended with {os.waitstatus_to_exitcode(status)}")
