"""Files that a job makes. They belong where they are named only once the whole job is through."""

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

    def note(self, attempt: Attempt) -> None:
        """Records the results of finished workers."""
        for worker in attempt.workers.values():
            if worker.finished and (made := worker.message.get("result")):
                self._made[worker.name] = made

    def save(self) -> None:
        """For a run that goes on from the checkpoint that is made now."""
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
        """Gives files their names; the items of those that have none, in the workers' order."""
        items: list[Any] = []
        for made, place in [self._paths_of(name) for name in workers if name in self._made]:  # all are looked at before one is moved
            shutil.move(made, f"{place}.new")  # to another disk, perhaps
            os.replace(f"{place}.new", place)
            if os.path.dirname(place) == self._folder:
                with open(place, "rb") as file:
                    items += _native.decode(file.read())
        return items

    def _paths_of(self, worker: str) -> tuple[str, str]:
        """What that worker names is moved: a file of the job's, or it could have anybody's moved anywhere. The folder is where the job
        is run, so who runs elsewhere has made nothing in it, and does not say where on this machine anything belongs."""
        made, place = self._made[worker]
        text = f"{worker} names {made!r:.200} as what it has made"
        if not self._is_here(worker):
            raise JobFailed(f"{text}, and runs elsewhere: have its stage run where the job is run, `.on(\"here\")`", worker)
        file, folder = os.path.realpath(made), os.path.realpath(self._folder)
        if not file.startswith(os.path.join(folder, "")) or not os.path.isfile(file):
            raise JobFailed(f"{text}, which is no file in {folder}: have it make its file in `self.folder`", worker)
        return file, place
