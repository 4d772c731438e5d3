"""Moves a job's result files to their destinations when the whole job has finished."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable
from typing import Any

from . import _native
from ._attempt import Attempt
from ._settings import JobFailed


class Results:
    """Files of finished workers by name, with their destinations."""

    def __init__(self, folder: str, is_here: Callable[[str], bool]) -> None:
        self._folder, self._list_path, self._is_here = folder, os.path.join(folder, "results"), is_here
        self._made: dict[str, list[str]] = {}

    def record(self, attempt: Attempt) -> None:
        """Records the results of finished workers."""
        for worker in attempt.workers.values():
            if worker.finished and (made := worker.message.get("result")):
                self._made[worker.name] = made

    def save(self) -> None:
        """Saves the results for a run that resumes from the current checkpoint."""
        with open(f"{self._list_path}.new", "w") as file:
            json.dump(self._made, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{self._list_path}.new", self._list_path)

    def load(self) -> None:
        """Loads the results of the last checkpoint. Workers that finished later run again."""
        self._made.clear()
        with contextlib.suppress(FileNotFoundError), open(self._list_path) as file:
            self._made.update(json.load(file))

    def take(self, workers: Iterable[str]) -> list[Any]:
        """Moves result files, and returns the items of files without a destination in the workers' order."""
        items: list[Any] = []
        for made, place in [self._paths_of(name) for name in workers if name in self._made]:  # all are checked before one is moved
            shutil.move(made, f"{place}.new")  # also to another disk
            os.replace(f"{place}.new", place)
            if os.path.dirname(place) == self._folder:
                with open(place, "rb") as file:
                    items += _native.decode(file.read())
        return items

    def _paths_of(self, worker: str) -> tuple[str, str]:
        """Returns a worker's file and its destination. Raises JobFailed for files outside the job's folder.

        Otherwise a worker could move any file. A remote worker has no files on this machine, so it may name none.
        """
        made, place = self._made[worker]
        text = f"{worker} names the result {made!r:.200}"
        if not self._is_here(worker):
            raise JobFailed(f"{text}, but is remote: run its stage on the leader's machine, `.on(\"here\")`", worker)
        file, folder = os.path.realpath(made), os.path.realpath(self._folder)
        if not file.startswith(os.path.join(folder, "")) or not os.path.isfile(file):
            raise JobFailed(f"{text}, which is no file in {folder}: write the file in `self.folder`", worker)
        return file, place
