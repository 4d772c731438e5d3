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

    A state is durable when `save` returns. A checkpoint exists when `complete` returns, and never changes afterwards.
    Raises OSError: FileNotFoundError and PermissionError for faults that an operator must correct, FileExistsError if another run
    of the job was first, ConnectionError after failed retries, and OSError itself for damaged data.
    """

    @abc.abstractmethod
    def save(self, number: int, worker: str, state: bytes) -> str:
        """Saves a state and returns its mark. `complete` names the mark, so later saves of dead workers do not count."""

    @abc.abstractmethod
    def load(self, number: int, worker: str) -> bytes | memoryview:
        """Loads the worker's state of this checkpoint."""

    @abc.abstractmethod
    def complete(self, number: int, states: Mapping[str, str], finished: Sequence[str]) -> None:
        """Completes a checkpoint, from which the job then resumes. `states` has the marks of saved states. Removes older ones."""

    @abc.abstractmethod
    def latest(self) -> str | None:
        """Returns the last complete checkpoint as JSON: `number`, `states`, `finished`."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Removes all checkpoints of the job."""


class Folder(Store):
    """A store in a folder that all workers reach."""

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
        raise ValueError(f"invalid store {scheme}://: expected a folder or s3://bucket/prefix")
    return _object_store(url)


@functools.lru_cache(maxsize=2)  # a client uses ten megabytes and a connection
def _object_store(url: str) -> Store:
    """Opens a store once per process, because credentials and the service description load slowly."""
    from ._s3 import ObjectStore

    return ObjectStore(url)


def below(url: str, name: str) -> str:
    """Returns the URL of a named part of a store."""
    if "://" not in url:
        return os.path.join(os.path.abspath(url), name)
    parts = urllib.parse.urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def new_mark() -> str:
    """Returns a random mark."""
    return secrets.token_hex(8)
