"""Identifies a job's code for remote workers: a function at the top level of a module, and its arguments."""

import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

from ._graph import Graph, Stage, Topology

JobDefinition: TypeAlias = Stage | Graph | Topology | list[Stage] | tuple[Stage, ...]

# Set in workers: a module that runs a job when it is imported would run it in each of them.
is_worker = False


@dataclass(frozen=True)
class Code:
    """The module, name and JSON arguments of a job's function."""

    module: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Callable[..., JobDefinition], arguments: Mapping[str, Any]) -> "Code":
        """Returns the code of a job's function. Raises ValueError if workers cannot import it."""
        name = getattr(job, "__qualname__", "")
        if not name.isidentifier():
            raise ValueError(f"remote workers import the job, but {name or job!r} cannot be imported: {_IMPORT_ADVICE}")
        module = _main() if job.__module__ == "__main__" else job.__module__
        if getattr(sys.modules[job.__module__], name, None) is not job:
            raise ValueError(f"remote workers import the job, but {module}.{name} is another object: {_IMPORT_ADVICE}")
        try:
            return cls(module, name, json.loads(json.dumps(dict(arguments))))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the arguments of {name} cannot be sent as JSON: {error}") from None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Code":
        return cls(values["module"], values["name"], values["arguments"])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def call(self) -> Graph | Topology:
        """Imports and calls the function in a worker."""
        try:
            job = getattr(importlib.import_module(self.module), self.name)
        except (ImportError, AttributeError) as error:
            text = f"the worker cannot import {self.module}.{self.name} ({error}): put the module on its PYTHONPATH"
            raise ImportError(text) from error
        if getattr(job, "__module__", None) != self.module:  # orders may call the module's own definitions only
            raise ImportError(f"{self.module}.{self.name} is not defined in {self.module}: name the module that defines it")
        return graph(job(**self.arguments))

    def folder(self) -> str | None:
        """Returns the module's folder on this machine, for a worker's PYTHONPATH."""
        top = self.module.partition(".")[0]
        main = sys.modules["__main__"]
        if self.module == _main(main, quiet=True) and getattr(main, "__spec__", None) is None:
            return os.path.dirname(os.path.abspath(main.__file__ or ""))
        spec = importlib.util.find_spec(top)
        return os.path.dirname(os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin) if spec and spec.origin else None


_IMPORT_ADVICE = "make it a function (def) at the top level of a module, and pass its input as `arguments`"


def _main(main: Any = None, quiet: bool = False) -> str:
    """Returns the name under which other processes import the program's module."""
    main = main or sys.modules["__main__"]
    if spec := getattr(main, "__spec__", None):
        return str(spec.name).removesuffix(".__main__")
    stem = os.path.basename(getattr(main, "__file__", None) or "").removesuffix(".py")
    if not quiet and not stem.isidentifier():
        raise ValueError(f"remote workers import the job, but this program has no importable name: {_IMPORT_ADVICE}")
    return stem


def graph(definition: JobDefinition) -> Graph | Topology:
    """Returns the graph or topology of a job's function."""
    if isinstance(definition, Graph | Topology):
        return definition
    stages = [definition] if isinstance(definition, Stage) else list(definition)
    if not stages or not all(isinstance(stage, Stage) for stage in stages):
        raise TypeError(f"invalid job: expected its last stage, a list of them, a graph or a topology, not {type(definition).__name__}")
    return Graph(*stages)


def mark(graph: Graph | Topology) -> str:
    """Returns a hash of the graph, which differs if leader and workers have different code."""
    return hashlib.sha256(graph.json().encode()).hexdigest()[:16]
