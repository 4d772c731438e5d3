"""Files of (word, count) pairs with the shape of the published job, and their sums, computed without a job.

101 files, 44.5 million pairs, 1.9 million different words at `scale` 1; a smaller scale has as many files, and shorter ones.
Words are drawn by Zipf's law: the one of rank r is r times rarer than the first, as in ordinary text. The files are Parquet.
"""

import json
import math
import os
import random
import shutil
import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq

FILES = 101
PAIRS = 44_500_000
WORDS = 1_900_000
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


class Shape:
    """How much there is of what."""

    def __init__(self, scale: float, seed: int) -> None:
        self.scale, self.seed = scale, seed
        self.pairs = round(PAIRS * scale / FILES)  # of a file
        self.ranks = vocabulary(self.pairs * FILES, round(WORDS * scale))

    def path(self, folder: str, file: int) -> str:
        return os.path.join(folder, f"{file:03}.parquet")


def vocabulary(draws: int, different: int) -> int:
    """How many words there must be for so many different ones to come up, on average, in so many draws by Zipf's law."""
    low, high = different, different * 2
    while expected(draws, high) < different:
        high *= 2
    while high - low > max(1, different // 2000):
        middle = (low + high) // 2
        low, high = (middle, high) if expected(draws, middle) < different else (low, middle)
    return high


def expected(draws: int, words: int) -> float:
    """How many of so many words come up."""
    each = draws / (np.arange(1, words + 1) * harmonic(words))
    return float(-np.expm1(-each).sum())


def harmonic(words: int) -> float:
    return math.log(words) + 0.5772156649 + 1 / (2 * words)


def words(shape: Shape) -> "pa.Array":
    """All of them, by rank: the more frequent, the shorter, as people have it. Three to twelve letters or some more."""
    draw = random.Random(shape.seed)
    return pa.array([word(rank, draw) for rank in range(shape.ranks)], pa.string())


def word(rank: int, draw: random.Random) -> str:
    """No two are the same: all but the letters in front are the rank."""
    tail, rest = "", rank
    while rest >= 0:
        tail, rest = LETTERS[rest % 26] + tail, rest // 26 - 1
    front = max(0, draw.randrange(3, 5 + len(tail) * 2) - len(tail))
    return "".join(draw.choices(LETTERS, k=front)) + "'" * (front > 0) + tail


def make(folder: str, scale: float, seed: int) -> None:
    """All files, and the right sums beside them. A folder that holds the same already is left as it is."""
    mark = json.dumps({"scale": scale, "seed": seed, "version": 1})
    if _read(os.path.join(folder, "shape.json")) == mark:
        return
    print(f"making {scale * PAIRS:,.0f} pairs in {folder}", file=sys.stderr)
    shape = Shape(scale, seed)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    names, chance = words(shape), np.cumsum(1 / np.arange(1, shape.ranks + 1))
    sums = np.zeros(shape.ranks, np.int64)
    for file in range(FILES):
        draw = np.random.default_rng([shape.seed, file])
        ranks = np.searchsorted(chance, draw.random(shape.pairs) * chance[-1]).astype(np.int32)
        counts = draw.geometric(0.4, shape.pairs).astype(np.int64)
        np.add.at(sums, ranks, counts)
        table = pa.table({"word": names.take(pa.array(ranks, pa.int32())), "count": pa.array(counts)})
        pq.write_table(table, shape.path(folder, file), row_group_size=shape.pairs)
    seen = np.flatnonzero(sums)
    right = pa.table({"word": names.take(pa.array(seen)), "count": pa.array(sums[seen])})
    pa.feather.write_feather(right, os.path.join(folder, "right.arrow"), compression="uncompressed")
    with open(os.path.join(folder, "shape.json"), "w") as out:
        out.write(mark)


def _read(path: str) -> str | None:
    if not os.path.exists(path):
        return None
    with open(path) as file:
        return file.read()
