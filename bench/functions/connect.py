"""A short-lived function: connects to PostgreSQL, asks one question, prints how long that took in nanoseconds, and ends."""

import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "packages"))

import pg8000.native  # noqa: E402: from the folder above

host, _, port = os.environ["HOST"].rpartition(":")
begun = time.perf_counter_ns()
connection = pg8000.native.Connection(
    os.environ["USER"], host=host, port=int(port), database=os.environ["DBNAME"], password=os.environ["PASS"], ssl_context=False
)
assert connection.run("SELECT 1") == [[1]]
took = time.perf_counter_ns() - begun
connection.close()
print(took)
