"""Whether the sums are right, to the last one."""

import glob
import os

import pyarrow as pa
import pyarrow.feather


def is_exact(folder: str, out: str) -> bool:
    """What the reducers wrote, beside what was summed without them."""
    made = [pa.ipc.open_file(path).read_all() for path in glob.glob(os.path.join(glob.escape(out), "sums-*.arrow"))]
    right = pa.feather.read_table(os.path.join(folder, "right.arrow"))
    if not made:
        return False
    is_same: bool = ordered(pa.concat_tables(made)).equals(ordered(right))
    return is_same


def ordered(sums: pa.Table) -> pa.Table:
    return sums.sort_by("word").combine_chunks()
