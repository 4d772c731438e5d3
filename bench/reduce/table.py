"""The printed table, and the file bench/results/reduce.json."""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from rounds import Death, Row


@dataclass
class Ratio:
    """A number with a goal; without one it is only reported."""

    name: str
    value: float
    better: str  # "higher" or "lower"
    goal: float | None

    @property
    def is_met(self) -> bool:
        if self.goal is None:
            return True
        return self.value >= self.goal if self.better == "higher" else self.value <= self.goal


def ratios(rows: list[Row], case: str) -> list[Ratio]:
    """Returns nearpath's ratios to the other variants, in one case."""
    by = {row.variant: row for row in rows if row.case == case}
    own, found = by.get("nearpath"), []
    for other, least, most in (("s3", 6.0, 0.40), ("s3, staged", None, None), ("redis", 1.5, None)):
        if own and other in by:
            there = by[other]
            found.append(Ratio(f"{case}: {other} / nearpath, time", there.seconds / own.seconds, "higher", least))
            found.append(Ratio(f"{case}: nearpath / {other}, GB·s", own.fixed_gb_seconds / there.fixed_gb_seconds, "lower", most))
    return found


def text(rows: Iterable[Row], found: Iterable[Ratio], deaths: Iterable[Death]) -> str:
    lines = [
        f"{'case':<58}{'variant':<13}{'s':>8}{'spread':>8}{'GB·s':>9}{'GB·s fixed':>12}{'map CPU':>9}{'red. CPU':>9}{'queued':>9}{'waiting':>9}{'failed':>8}"
    ]
    for row in rows:
        lines.append(
            f"{row.case:<58}{row.variant:<13}{row.seconds:>8.2f}{row.spread:>8.0%}{row.gb_seconds:>9.2f}{row.fixed_gb_seconds:>12.1f}"
            f"{row.map_cpu_seconds:>9.2f}{row.reduce_cpu_seconds:>9.2f}{row.queued_seconds:>9.1f}{row.waiting_seconds:>9.1f}{row.failed:>8}"
        )
    lines.append("")
    for one in found:
        goal = "" if one.goal is None else f"  {'≥' if one.better == 'higher' else '≤'} {one.goal:g}  {'met' if one.is_met else 'MISSED'}"
        lines.append(f"{one.name:<92}{one.value:>8.2f}{goal}")
    for death in deaths:
        how = "exact" if death.is_exact else "WRONG"
        lines.append(f"{death.case}: {death.killed} killed (seed {death.seed}), {death.seconds:.2f} s, {how}")
    return "\n".join(lines)


def document(rows: Iterable[Row], found: Iterable[Ratio], deaths: Iterable[Death]) -> str:
    parts: dict[str, list[Any]] = {"rows": [*rows], "ratios": [*found], "deaths": [*deaths]}
    return json.dumps({name: [asdict(one) for one in of] for name, of in parts.items()}, indent=2, ensure_ascii=False) + "\n"


def write(written: str) -> str:
    folder = os.environ.get("NEARPATH_BENCH_RESULTS", "bench/results")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "reduce.json")
    with open(path, "w") as file:
        file.write(written)
    return path
