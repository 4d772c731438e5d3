"""Runs the shop without nearpath, with its own database."""

import http.client
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

RETAIL = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(RETAIL.parent))

from testing import need, standin  # noqa: E402


class Database:
    """PostgreSQL in a temporary folder. `accesses` lists the connecting functions."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="nearpath-retail-test.")
        pathlib.Path(self.folder).chmod(0o755)  # the server runs as another user
        started = self.command("start")
        if started.returncode == 77:
            shutil.rmtree(self.folder)
            need.skip("examples/retail", started.stderr)
        if started.returncode != 0:
            raise RuntimeError(f"the database does not start: {started.stderr}")
        self.variables = dict(re.findall(r"(RETAIL_\w+)=(\S+)", started.stdout))
        self.connection = self.connect()

    def connect(self):
        """Opens the test's own connection."""
        import pg8000.native  # installed by need.packages

        host, _, port = self.variables["RETAIL_DATABASE"].rpartition(":")
        own = {"password": self.variables["RETAIL_PASSWORD"], "application_name": "test", "ssl_context": False}
        return pg8000.native.Connection("retail", host=host, port=int(port), database="retail", timeout=60, **own)

    def command(self, command):
        environment = os.environ | {"RETAIL_HOST": "127.0.0.1"}  # the stand-in's functions are processes of this machine
        command = [str(RETAIL / "database"), command, self.folder]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)

    def seed(self):
        """Resets the database."""
        self.connection.run((RETAIL / "seed.sql").read_text())

    def sql(self, statement):
        """Runs a statement and returns the first column."""
        return [row[0] for row in self.connection.run(statement) or []]

    def wait_until(self, statement, wanted):
        """Waits until a statement returns a value, because a server ends a connection after its client."""
        deadline = time.monotonic() + standin.TIMEOUT_SECONDS
        while (answer := self.sql(statement)) != [wanted]:
            if time.monotonic() > deadline:
                raise AssertionError(f"after {standin.TIMEOUT_SECONDS} s `{statement}` answers {answer}")
            time.sleep(0.05)

    def accesses(self):
        """Returns the connecting functions in order. The server logs before it responds."""
        log = (pathlib.Path(self.folder) / "log").read_text()
        names = re.findall(r"connection authorized: .*application_name=(\S+)", log)
        return [name for name in names if name not in ("psql", "test")]

    def stop(self):
        self.connection.close()
        self.command("stop")
        shutil.rmtree(self.folder)


class Shop(standin.StandIn):
    """The shop's functions with the environment of stack.yml."""

    def __init__(self):
        packages = need.packages("retail")
        sys.path.insert(0, packages)
        self.database = Database()
        variables = self.database.variables
        environment = {"HOST": variables["RETAIL_DATABASE"], "PASS": variables["RETAIL_PASSWORD"]}
        environment |= {"USER": "retail", "DBNAME": "retail", "PYTHONPATH": packages}
        try:
            super().__init__(RETAIL / "stack.yml", environment)
        except BaseException:
            self.database.stop()
            raise

    def send(self, function, body):
        """Sends a request to a function directly. Returns status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.ports[function], timeout=30)
        try:
            connection.request("POST", "/", json.dumps(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def stop(self):
        super().stop()
        self.database.stop()
