"""Connects, asks one thing and leaves, 80 times at each address by turns; prints medians in milliseconds."""
import random
import statistics
import sys
import time
import psycopg

password, ways = sys.argv[1], dict(way.split("=") for way in sys.argv[2:])
times = {way: [] for way in ways}
for turn in range(85):
    # What one leaves the machine to do is not always the same other one's to bear.
    for way, port in random.sample(list(ways.items()), len(ways)):
        began = time.perf_counter()
        with psycopg.connect(f"host=127.0.0.1 port={port} user=measured dbname=postgres sslmode=disable", password=password) as c:
            assert c.execute("SELECT 1").fetchone() == (1,)
        if turn >= 5:
            times[way].append((time.perf_counter() - began) * 1000)
for way, taken in times.items():
    print(f"{way}: median {statistics.median(taken):.2f} ms, nine in ten below {sorted(taken)[71]:.2f} ms")
