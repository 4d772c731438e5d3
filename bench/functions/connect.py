"""A short-lived function: connects to PostgreSQL, makes one query, prints the duration in nanoseconds, and ends.

$CLIENT is `libpq`, the C library below most drivers, or `pg8000`, pure Python.
"""

import ctypes
import os
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "packages"))

QUERY = "SELECT 1"


class Pg8000:
    def __init__(self):
        import pg8000.native

        self.connect = pg8000.native.Connection

    def query(self, host, port, user, password, database):
        self.connection = self.connect(user, host=host, port=port, database=database, password=password, ssl_context=False)
        return self.connection.run(QUERY)[0][0]

    def close(self):
        self.connection.close()


class Libpq:
    TUPLES = 2  # PGRES_TUPLES_OK

    def __init__(self):
        self.pq = ctypes.CDLL("libpq.so.5")
        for name, back in [("PQconnectdb", ctypes.c_void_p), ("PQexec", ctypes.c_void_p), ("PQgetvalue", ctypes.c_char_p)]:
            getattr(self.pq, name).restype = back
        self.pq.PQerrorMessage.restype = ctypes.c_char_p

    def query(self, host, port, user, password, database):
        options = f"host={host} port={port} user={user} password={password} dbname={database}"
        self.connection = ctypes.c_void_p(self.pq.PQconnectdb(options.encode()))
        result = ctypes.c_void_p(self.pq.PQexec(self.connection, QUERY.encode()))
        if self.pq.PQresultStatus(result) != self.TUPLES:
            raise RuntimeError(self.pq.PQerrorMessage(self.connection).decode())
        return int(self.pq.PQgetvalue(result, 0, 0))

    def close(self):
        self.pq.PQfinish(self.connection)


client = {"libpq": Libpq, "pg8000": Pg8000}[os.environ["CLIENT"]]()
host, _, port = os.environ["HOST"].rpartition(":")
begun = time.perf_counter_ns()
answer = client.query(host, int(port), os.environ["USER"], os.environ["PASS"], os.environ["DBNAME"])
took = time.perf_counter_ns() - begun
assert answer == 1
client.close()
print(took)
