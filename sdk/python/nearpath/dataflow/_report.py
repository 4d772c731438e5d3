"""Report and progress of a job."""

import html
from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from ._attempt import Restart

@dataclass
class StageReport:
    """Totals of one stage's workers over all attempts."""

    workers: int
    items: int = 0  # items made in the last attempt
    bytes_in: int = 0
    bytes_out: int = 0
    spilled: int = 0
    starts: int = 0
    seconds: float = 0.0  # lifetime of all processes
    processor_seconds: float = 0.0
    waited_for_input: float = 0.0
    waited_for_room: float = 0.0
    gb_seconds: float = 0.0

    def add(self, report: dict[str, Any], is_finished: bool) -> None:
        """Adds a worker's last report of an attempt."""
        self.processor_seconds += report["processor"]
        self.waited_for_input += report.get("waited_for_input", 0.0)
        self.waited_for_room += report.get("waited_for_room", 0.0)
        self.bytes_in += report.get("bytes_in", 0)
        self.bytes_out += report.get("bytes_out", 0)
        self.spilled += report.get("spilled", 0)
        if is_finished:
            self.items += report["items"]

    def add_start(self, seconds: float, memory: float) -> None:
        """Adds an ended start; memory in GB."""
        self.starts += 1
        self.seconds += seconds
        self.gb_seconds += seconds * memory


@dataclass
class Report:
    """The report of a job. Items count from the last checkpoint."""

    seconds: float = 0.0
    stages: dict[str, StageReport] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)  # the causes
    checkpoints: int = 0
    place: str = "local"
    renewals: list[str] = field(default_factory=list)  # renewals before a place's time limit
    stragglers: list[str] = field(default_factory=list)  # restarts of slow workers
    stalls: list[str] = field(default_factory=list)  # workers without progress, with their Python stacks
    _paths: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)

    def set_paths(self, worker: str, report: dict[str, Any]) -> None:
        """Sets the paths of a worker's outputs in its last attempt."""
        self._paths[worker] = report.get("paths", {})

    def add_restart(self, restart: Restart) -> None:
        """Adds a return to a checkpoint."""
        restarts = self.restarts if restart.is_death else self.stragglers if restart.is_slow else self.renewals
        restarts.append(restart.why)

    def json(self) -> dict[str, Any]:
        """Returns all fields as plain values."""
        stages = {name: asdict(stage) for name, stage in self.stages.items()}
        return {
            "seconds": self.seconds,
            "place": self.place,
            "stages": stages,
            "paths": self.paths,
            "checkpoints": self.checkpoints,
            "starts": self.starts,
            "gb_seconds": self.gb_seconds,
            "restarts": self.restarts,
            "renewals": self.renewals,
            "stragglers": self.stragglers,
            "stalls": self.stalls,
        }

    @property
    def starts(self) -> int:
        """Returns the number of started workers."""
        return sum(stage.starts for stage in self.stages.values())

    @property
    def paths(self) -> dict[str, int]:
        """Returns the number of edges by path."""
        total: Counter[str] = Counter()
        for paths in self._paths.values():
            total.update(paths)
        return dict(total)

    @property
    def gb_seconds(self) -> float:
        """Returns memory over time, the price unit of functions. Estimated from each process's peak if the place has no memory."""
        return sum(stage.gb_seconds for stage in self.stages.values())

    def _repr_html_(self) -> str:
        """Renders the report in a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        head = f"{'stage':<20}{'workers':>8}{'items':>14}{'MB in':>10}{'MB out':>10}{'CPU s':>9}{'waited s':>10}{'GB·s':>9}"
        lines = [head] + [_format_row(name, stage) for name, stage in self.stages.items()]
        paths = ", ".join(f"{count} edges {path}" for path, count in self.paths.items())
        lines.append(f"{self.seconds:.2f} s · {self.gb_seconds:.2f} GB·s at {self.place} · {self.starts} starts · {paths} · {self.checkpoints} checkpoints")
        lines += [f"restarted: {why}" for why in self.restarts + self.stragglers + self.renewals]
        lines += [f"stalled: {stall.partition(chr(10))[0]}" for stall in self.stalls]
        return "\n".join(lines)


def _format_row(name: str, stage: StageReport) -> str:
    waited = stage.waited_for_input + stage.waited_for_room
    return (
        f"{name:<20}{stage.workers:>8}{stage.items:>14,}{stage.bytes_in / 1e6:>10.1f}{stage.bytes_out / 1e6:>10.1f}"
        f"{stage.processor_seconds:>9.2f}{waited:>10.2f}{stage.gb_seconds:>9.2f}"
    )


class Progress:
    """Formats a job's progress as one line. Time is an argument."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._samples: deque[tuple[float, int]] = deque([(0.0, 0)])

    def _rate(self, seconds: float, made: int) -> float:
        """Returns the rate of the last ten seconds, or since a restart, which reduces the count."""
        while self._samples and (self._samples[-1][1] > made or (len(self._samples) > 1 and self._samples[1][0] < seconds - 10)):
            self._samples.popleft()
        since, before = self._samples[0] if self._samples else (seconds, made)
        if not self._samples or seconds - self._samples[-1][0] >= 0.25:
            self._samples.append((seconds, made))
        return (made - before) / (seconds - since) if seconds > since else 0.0

    def line(self, seconds: float, made: int, finished: int, workers: int, width: int = 80) -> str:
        """Formats the line. `made` counts items of sources, `finished` workers."""
        rate = self._rate(seconds, made)
        parts = [f"{_format_time(seconds)}", f"{made:,} items", f"{rate:,.0f}/s", f"{finished} of {workers} workers done"]
        if self._total:
            share = min(1.0, made / self._total)
            parts.insert(0, f"[{'#' * int(20 * share):<20}] {share:4.0%}")
            if rate and share < 1:
                parts.insert(1, f"{_format_time((self._total - made) / rate)} to go")
        return " · ".join(parts)[: width - 1]


def _format_time(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    return f"{minutes:02}:{rest:02}"
