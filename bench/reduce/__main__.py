"""Reduce-by-key with 104 workers, by transport between mappers and reducers: nearpath.dataflow, an object store, Redis.

    python3 bench/reduce                    everything on this machine, some minutes
    python3 bench/reduce --quick            a twentieth of the data, once

`nearpath-bench reduce` runs it on machines behind NATs, too.
"""

import argparse
import os
import sys
import tempfile

import data
import rounds
import servers
import table
from servers import Lab

WAYS = ["nearpath", "s3", "s3, staged", "redis"]
SLOW = 64  # simulates 104 workers with one processor each on two shared processors
WORKERS, KILLED = 104, 5


def main() -> int:
    given = options()
    os.environ |= worker_variables()
    rows: list[rounds.Row] = []
    deaths: list[rounds.Death] = []
    for lab in [Lab(), Lab(given.slow)] * (not given.only_labs) + servers.labs(given.labs):
        with servers.all_of(lab) as words, tempfile.TemporaryDirectory() as folder:
            for case in cases(given, lab, words):
                made = rounds.compare(case, given.ways, given.rounds, os.path.join(folder, "out"))
                rows += made
                deaths += killed(given, case, made[0].seconds, os.path.join(folder, "out"))
    return report(given, rows, deaths)


def options() -> argparse.Namespace:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--scales", type=float, nargs="*", default=[0.05, 1.0], help="data sizes at full speed; 1: 44.5 million pairs")
    words.add_argument("--own", type=float, nargs="*", default=[0.05, 1.0], help="data sizes with a simulated processor per worker")
    words.add_argument("--slow", type=float, default=SLOW, help="slowdown that simulates a processor per worker")
    words.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    words.add_argument("--reducers", type=int, nargs="*", default=[3, 20], help="numbers of reducers among the 104 workers")
    words.add_argument("--rounds", type=int, default=3)
    words.add_argument("--kills", type=int, default=3, help="jobs of each size in which 5 %% of the workers are killed")
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--labs", help="machines of `nearpath-bench reduce`, as JSON")
    words.add_argument("--only-labs", action="store_true", help="skip runs on this machine alone")
    words.add_argument("--quick", action="store_true", help="use a twentieth of the data, once, and write no file")
    words.add_argument("--json", action="store_true", help="print the file instead of the table")
    given = words.parse_args()
    if given.quick:
        given.scales, given.own, given.rounds, given.kills = given.scales[:1], given.own[:1], 1, min(given.kills, 1)
    return given


def worker_variables() -> dict[str, str]:
    """Variables for all workers. mimalloc, Arrow's default allocator, uses huge pages, and zeroing them dominates short processes.
    numpy's threads would spin."""
    return {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1"}


def cases(given: argparse.Namespace, lab: Lab, words: list[str]) -> list[rounds.Case]:
    where = "behind NATs" if lab.machines else "one machine"
    how = ", own processors" if lab.slow > 1 else ""
    scales = given.own if lab.slow > 1 else given.scales
    return [
        rounds.Case(
            f"{scale * data.PAIRS / 1e6:.3g} M pairs, {reducers} reducers, {where}{how}", files(scale, given.seed), data.FILES, WORKERS, reducers, lab.slow, lab.enter, words,
        )  # fmt: skip
        for scale in scales
        for reducers in given.reducers
    ]


def files(scale: float, seed: int) -> str:
    """Returns the folder of the input files, which later runs reuse."""
    folder = os.path.join(os.environ.get("CARGO_TARGET_DIR", "target"), "bench", "reduce", f"{scale:g}-{seed}")
    data.make(folder, scale, seed)
    return os.path.abspath(folder)


def killed(given: argparse.Namespace, case: rounds.Case, seconds: float, out: str) -> list[rounds.Death]:
    """Runs jobs with killed workers, each at another time."""
    if case.slow > 1 or "nearpath" not in given.ways:
        return []
    moments = [0.3 + 0.5 * seed / given.kills for seed in range(given.kills)]
    return [rounds.kill(case, seed, seconds * moment, KILLED, out) for seed, moment in enumerate(moments)]


def report(given: argparse.Namespace, rows: list[rounds.Row], deaths: list[rounds.Death]) -> int:
    found = [one for case in dict.fromkeys(row.case for row in rows) for one in table.ratios(rows, case)]
    written = table.document(rows, found, deaths)
    print(written if given.json else table.text(rows, found, deaths))
    if not given.quick:
        print(f"\nwritten: {table.write(written)}", file=sys.stderr)
    is_good = all(one.is_met for one in found) and all(death.is_exact for death in deaths) and not any(row.failed for row in rows)
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
