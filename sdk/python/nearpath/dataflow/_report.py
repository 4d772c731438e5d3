"""Report and progress of a job."""

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from typing import Any

from ._attempt import Restart

@dataclass
class StageReport:
    """Of all workers of one stage, over all attempts."""

    workers: int
    items: int = 0  # that it made, in the attempt that counted
    bytes_in: int = 0
    bytes_out: int = 0
    spilled: int = 0
    starts: int = 0
    seconds: float = 0.0  # of processes
    processor_seconds: float = 0.0
    waited_for_input: float = 0.0
    waited_for_room: float = 0.0
    gb_seconds: float = 0.0

    def add(self, report: dict[str, Any], counts: bool) -> None:
        """A worker's last word in one attempt."""
        self.processor_seconds += report["processor"]
        self.waited_for_input += report.get("waited_for_input", 0.0)
        self.waited_for_room += report.get("waited_for_room", 0.0)
        self.bytes_in += report.get("bytes_in", 0)
        self.bytes_out += report.get("bytes_out", 0)
        self.spilled += report.get("spilled", 0)
        if counts:
            self.items += report["items"]

    def add_start(self, seconds: float, memory: float) -> None:
        """A start of a worker is over; memory in GB."""
        self.starts += 1
        self.seconds += seconds
        self.gb_seconds += seconds * memory


@dataclass
class Report:
    """The report of a job. Items count from the last checkpoint."""

    seconds: float = 0.0
    stages: dict[str, StageReport] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)  # why, each
    checkpoints: int = 0
    place: str = "local"
    turn_overs: list[str] = field(default_factory=list)  # starts that were replaced before their place ended them
    stragglers: list[str] = field(default_factory=list)  # workers that were started anew because they were slow
    _paths: dict[str, dict[str, int]] = field(default_factory=dict, repr=False)

    def set_paths(self, worker: str, report: dict[str, Any]) -> None:
        """By which paths a worker's outputs went in its last attempt."""
        self._paths[worker] = report.get("paths", {})

    def add_restart(self, restart: Restart) -> None:
        """The job goes back to a checkpoint."""
        restarts = self.restarts if restart.is_death else self.stragglers if restart.is_slow else self.turn_overs
        restarts.append(restart.why)

    def json(self) -> dict[str, Any]:
        """All fields, as plain values."""
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
            "turn_overs": self.turn_overs,
            "stragglers": self.stragglers,
        }

    @property
    def starts(self) -> int:
        """Of workers."""
        return sum(stage.starts for stage in self.stages.values())

    @property
    def paths(self) -> dict[str, int]:
        """Edges, by the path that they took."""
        total: Counter[str] = Counter()
        for paths in self._paths.values():
            total.update(paths)
        return dict(total)

    @property
    def gb_seconds(self) -> float:
        """Memory over time: what functions are paid by. Where the place does not say the memory, estimated from the most that each process had."""
        return sum(stage.gb_seconds for stage in self.stages.values())

    def __str__(self) -> str:
        head = f"{'stage':<20}{'workers':>8}{'items':>14}{'MB in':>10}{'MB out':>10}{'CPU s':>9}{'waited s':>10}{'GB·s':>9}"
        lines = [head] + [_format_row(name, stage) for name, stage in self.stages.items()]
        paths = ", ".join(f"{count} edges {path}" for path, count in self.paths.items())
        lines.append(f"{self.seconds:.2f} s · {self.gb_seconds:.2f} GB·s at {self.place} · {self.starts} starts · {paths} · {self.checkpoints} checkpoints")
        lines += [f"started again: {why}" for why in self.restarts + self.stragglers + self.turn_overs]
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
        self._seen: deque[tuple[float, int]] = deque([(0.0, 0)])

    def _rate(self, seconds: float, made: int) -> float:
        """Over the last ten seconds. After a restart there are fewer items than before: then from there on."""
        while self._seen and (self._seen[-1][1] > made or (len(self._seen) > 1 and self._seen[1][0] < seconds - 10)):
            self._seen.popleft()
        since, before = self._seen[0] if self._seen else (seconds, made)
        if not self._seen or seconds - self._seen[-1][0] >= 0.25:
            self._seen.append((seconds, made))
        return (made - before) / (seconds - since) if seconds > since else 0.0

    def line(self, seconds: float, made: int, finished: int, workers: int, width: int = 80) -> str:
        """So many items have left their sources, and so many workers are through."""
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
