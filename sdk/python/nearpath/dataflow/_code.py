"""A job's code as workers elsewhere find it: a function at the top level of a module, and what it is called with."""

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

Made: TypeAlias = Stage | Graph | Topology | list[Stage] | tuple[Stage, ...]

# Set in workers: a module that runs a job when it is imported would run it in each of them.
is_worker = False


@dataclass(frozen=True)
class Code:
    """Where a job's function is, and its arguments (plain JSON)."""

    module: str
    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, job: Callable[..., Made], arguments: Mapping[str, Any]) -> "Code":
        """Raises where workers could not find it, with what to change."""
        name = getattr(job, "__qualname__", "")
        if not name.isidentifier():
            raise ValueError(f"workers elsewhere import the job, and {name or job!r} cannot be imported: {_HOW}")
        module = _main() if job.__module__ == "__main__" else job.__module__
        if getattr(sys.modules[job.__module__], name, None) is not job:
            raise ValueError(f"workers elsewhere import the job, and {module}.{name} is something else: {_HOW}")
        try:
            return cls(module, name, json.loads(json.dumps(dict(arguments))))
        except (TypeError, ValueError) as error:
            raise ValueError(f"the arguments of {name} go to workers as JSON: {error}") from None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "Code":
        return cls(values["module"], values["name"], values["arguments"])

    def values(self) -> dict[str, Any]:
        return asdict(self)

    def call(self) -> Graph | Topology:
        """In a worker."""
        try:
            job = getattr(importlib.import_module(self.module), self.name)
        except (ImportError, AttributeError) as error:
            told = f"the worker cannot import {self.module}.{self.name} ({error}): put the module where it runs, on PYTHONPATH"
            raise ImportError(told) from error
        if getattr(job, "__module__", None) != self.module:  # orders call the job's code, not all that it imports
            raise ImportError(f"{self.module}.{self.name} is not defined in {self.module}: name the module in which it is")
        return graph(job(**self.arguments))

    def folder(self) -> str | None:
        """Where its module lies on this machine: what a worker's PYTHONPATH needs."""
        top = self.module.partition(".")[0]
        main = sys.modules["__main__"]
        if self.module == _main(main, quiet=True) and getattr(main, "__spec__", None) is None:
            return os.path.dirname(os.path.abspath(main.__file__ or ""))
        spec = importlib.util.find_spec(top)
        return os.path.dirname(os.path.dirname(spec.origin) if spec.submodule_search_locations else spec.origin) if spec and spec.origin else None


_HOW = "make it a function (def) at the top level of a module, and give what it needs as `arguments`"


def _main(main: Any = None, quiet: bool = False) -> str:
    """The program's module by the name under which others can import it."""
    main = main or sys.modules["__main__"]
    if spec := getattr(main, "__spec__", None):
        return str(spec.name).removesuffix(".__main__")
    stem = os.path.basename(getattr(main, "__file__", None) or "").removesuffix(".py")
    if not quiet and not stem.isidentifier():
        raise ValueError(f"workers elsewhere import the job, and this program has no name that can be imported: {_HOW}")
    return stem


def graph(made: Made) -> Graph | Topology:
    """What a job's function gave."""
    if isinstance(made, Graph | Topology):
        return made
    stages = [made] if isinstance(made, Stage) else list(made)
    if not stages or not all(isinstance(stage, Stage) for stage in stages):
        raise TypeError(f"a job gives its last stage, a list of them, a graph or a topology, not {type(made).__name__}")
    return Graph(*stages)


def mark(graph: Graph | Topology) -> str:
    """The same for leader and workers, or they have different code."""
    return hashlib.sha256(graph.json().encode()).hexdigest()[:16]
