"""A function that loads PostgreSQL with Debian's own clients. Its request is JSON, its response, too.

{"mode": "initialize"}                                  makes pgbench's tables
{"mode": "simple", "host": "HOST:PORT", "seconds": 3}   pgbench -S with this protocol: latencies in microseconds
{"mode": "copy", "host": "HOST:PORT", "megabytes": 100} reads so much in one COPY; its response is empty
"""

import glob
import json
import os
import subprocess
import sys
import tempfile

CLIENTS = 8


def client_program(name):
    # Debian's /usr/bin/psql is a wrapper in Perl, which looks for clusters.
    return sorted(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"))[-1]


def environment(plan):
    host, _, port = plan["host"].rpartition(":")
    names = {"PGHOST": host, "PGPORT": port, "PGUSER": "USER", "PGPASSWORD": "PASS", "PGDATABASE": "DBNAME"}
    variables = {name: os.environ.get(value, value) for name, value in names.items()}
    variables["PGDATABASE"] = plan.get("database", variables["PGDATABASE"])
    return {**os.environ, **variables, "PGSSLMODE": "disable"}


def run(plan, arguments, **more):
    return subprocess.run(arguments, env=environment(plan), check=True, stdin=subprocess.DEVNULL, **more)


def initialize(plan):
    run(plan, [client_program("pgbench"), "-i", "-q", "-n", "-s", "1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return {}


def copy(plan):
    rows = plan["megabytes"] * 1000
    query = f"COPY (SELECT repeat('x', 999) FROM generate_series(1, {rows})) TO STDOUT"
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    program = client_program("psql")
    # In place of this process: whoever ends it ends the transfer.
    os.execve(program, [program, "-X", "-q", "-c", query], environment(plan))


def queries(plan):
    with tempfile.TemporaryDirectory() as folder:
        load = ["-n", "-S", "-M", plan["mode"], "-c", str(CLIENTS), "-T", str(plan["seconds"])]
        run(plan, [client_program("pgbench"), *load, "-l", f"--log-prefix={folder}/log"], stdout=subprocess.DEVNULL)
        lines = [line.split() for name in glob.glob(f"{folder}/log*") for line in open(name)]
    latencies = sorted(int(fields[2]) for fields in lines)
    return {"answered": len(latencies), "p50_us": latencies[len(latencies) // 2], "p99_us": latencies[len(latencies) * 99 // 100]}


plan = json.load(sys.stdin)
json.dump({"initialize": initialize, "copy": copy}.get(plan["mode"], queries)(plan), sys.stdout)
