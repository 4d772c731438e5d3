"""Stores for checkpoints: a folder or an object store, with the layout of contract/dataflow.md."""

import abc
import functools
import os
import secrets
import urllib.parse
from collections.abc import Mapping, Sequence

from . import _native


class Store(abc.ABC):
    """The checkpoints of one job.

    A state is safe when `save` returns. A checkpoint is there once `complete` has returned, and is never another one from then on.
    Raises OSError: FileNotFoundError and PermissionError for what somebody must put right, FileExistsError where another run of the
    job was there first, ConnectionError where no answer came though it was asked several times; what is damaged is told as such.
    """

    @abc.abstractmethod
    def save(self, number: int, worker: str, state: bytes) -> str:
        """Saves a state and returns its mark. `complete` names the mark, so later saves of dead workers do not count."""

    @abc.abstractmethod
    def load(self, number: int, worker: str) -> bytes | memoryview:
        """Loads the worker's state of this checkpoint."""

    @abc.abstractmethod
    def complete(self, number: int, states: Mapping[str, str], finished: Sequence[str]) -> None:
        """From now on the job goes on from here: `states` has the marks of those who saved. Older checkpoints are removed."""

    @abc.abstractmethod
    def latest(self) -> str | None:
        """The last complete one, as JSON: `number`, `states`, `finished`."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Nothing stays."""


class Folder(Store):
    """On a disk that all of the job's workers see."""

    def __init__(self, path: str) -> None:
        self._checkpoints = _native.Checkpoints(path)

    def save(self, number: int, worker: str, state: bytes) -> str:
        mark = new_mark()
        self._checkpoints.save(number, worker, mark, state)
        return mark

    def load(self, number: int, worker: str) -> bytes:
        return self._checkpoints.load(number, worker)

    def complete(self, number: int, states: Mapping[str, str], finished: Sequence[str]) -> None:
        self._checkpoints.complete(number, dict(states), finished)

    def latest(self) -> str | None:
        return self._checkpoints.latest()

    def clear(self) -> None:
        self._checkpoints.clear()


def store(url: str) -> Store:
    """Opens a folder, or `s3://bucket/prefix`, with `?endpoint=https://…&region=…` for stores other than Amazon's."""
    scheme, separator, _ = url.partition("://")
    if not separator:
        return Folder(url)
    if scheme != "s3":
        raise ValueError(f"checkpoints are kept in a folder or at s3://bucket/prefix, not at {scheme}://")
    return _object_store(url)


@functools.lru_cache(maxsize=2)  # each has ten megabytes and a connection
def _object_store(url: str) -> Store:
    """Opens a store once per process, because credentials and the service description load slowly."""
    from ._s3 import ObjectStore

    return ObjectStore(url)


def below(url: str, name: str) -> str:
    """A place of its own in a store."""
    if "://" not in url:
        return os.path.join(os.path.abspath(url), name)
    parts = urllib.parse.urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def new_mark() -> str:
    """Returns a random mark."""
    return secrets.token_hex(8)
