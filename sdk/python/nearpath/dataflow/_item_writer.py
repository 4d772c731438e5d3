"""Writes a worker's items to its own outputs and to streams."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from . import _native
from ._workers import Item, Worker

CHUNK = 1024
# Seconds that an item waits for others, unless its edge says something else. As in crates/dataflow.
DEFAULT_LINGER = 0.05


class ItemWriter:
    """Sends items to a worker's outputs, in the worker's codec."""

    def __init__(self, worker: Worker, streams: _native.Streams, outputs: Sequence[Mapping[str, Any]], window: int) -> None:
        self._worker, self._streams = worker, streams
        self._own = [port for port in outputs if port["type"] != "tcp"]
        targets = [port for port in outputs if port["type"] == "tcp"]
        self._groups = _groups(targets)
        self._next_outputs = [0] * len(self._groups)
        pending = {port["worker"] for port in targets if port.get("pending")}
        self._has_pending = [any(targets[at]["worker"] in pending for at in outputs) for _, outputs, _ in self._groups]
        batch = max(16 << 10, min(256 << 10, window // 4, (16 << 20) // max(1, len(targets))))
        self._outbox = _native.Outbox(streams, self._groups, batch)
        self._is_raw = worker.codec == "raw"
        has_own = type(worker).serialise is not Worker.serialise or type(worker).divide is not Worker.divide
        self._is_special = self._is_raw or has_own
        self._chunk: list[Item] = []  # taken, but not passed on
        self._linger = min((linger for _, _, linger in self._groups if linger is not None), default=DEFAULT_LINGER)

    @property
    def items(self) -> int:
        """Returns the number of items so far, also during a batch."""
        return self._outbox.items

    def flush(self) -> None:
        """Sends all items so far. The user's code may call it while its items are taken."""
        self._pass_chunk()
        self._outbox.flush()

    def write_items(self, items: Iterator[Item], seconds: float | None) -> tuple[int, bool]:
        """Sends items for up to `seconds`. Returns their number, and True at the end of the items."""
        if self._own or self._is_special:
            return self._write_chunks(items, seconds)
        return self._outbox.extend(items, seconds)

    def _write_chunks(self, items: Iterator[Item], seconds: float | None) -> tuple[int, bool]:
        end, count = None if seconds is None else time.monotonic() + seconds, 0
        while taken := self._take_chunk(items):
            count += taken
            self._pass_chunk()
            if end is not None and time.monotonic() >= end:
                return count, False
        return count, True

    def _take_chunk(self, items: Iterator[Item]) -> int:
        """Takes items until the chunk is full or has lasted for the linger. Returns their number."""
        size, end, taken = 1 if self._is_raw else CHUNK, time.monotonic() + self._linger, 0
        for item in items:
            self._chunk.append(item)
            taken += 1
            if taken >= size or time.monotonic() >= end:
                break
        return taken

    def _pass_chunk(self) -> None:
        chunk, self._chunk = self._chunk, []
        if not chunk:
            return
        for port in self._own:
            self._worker.output(chunk, port)
        if self._groups and self._is_special:
            for group in range(len(self._groups)):
                self._send(group, chunk)
        elif self._groups:
            self._outbox.extend(iter(chunk))

    def _send(self, group: int, items: list[Item]) -> None:
        """Encodes items with the user's codec and sends them."""
        how, outputs, _ = self._groups[group]
        if self._has_pending[group]:
            outputs = self._streams.filter_open_outputs(outputs)
        if self._is_raw:
            return self._send_batches(how, outputs, group, items)
        if how != "by-key":
            return self._send_batches(how, outputs, group, self._worker.serialise(items))
        for output, part in zip(outputs, self._worker.divide(items, len(outputs))):
            for batch in self._worker.serialise(part) if part else ():
                self._streams.send(output, batch)

    def _send_batches(self, how: str, outputs: list[int], group: int, batches: Iterable[Any]) -> None:
        if how == "by-key" and len(outputs) > 1:
            name = self._worker.name
            raise TypeError(f"{name} yields batches, which have no key: yield pairs, or use `spread`")
        for batch in batches:
            if how == "spread":
                self._next_outputs[group] = turn = (self._next_outputs[group] + 1) % len(outputs)
                self._streams.send(outputs[turn], batch)
            else:
                for output in outputs:
                    self._streams.send(output, batch)


def _groups(targets: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[int], float | None]]:
    """Groups outputs that share items, each with its distribution and linger."""
    groups: dict[str, tuple[str, list[int], float | None]] = {}
    for at, port in enumerate(targets):
        how, linger = port.get("distribution", "broadcast"), port.get("linger", DEFAULT_LINGER)
        groups.setdefault(port.get("group") or port["worker"], (how, [], linger))[1].append(at)
    return list(groups.values())
