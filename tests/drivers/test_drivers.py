"""Real drivers run unmodified in functions: each prints the same as beside the server, twice. `make test-drivers` runs this.

NEARPATH_TEST_PROGRAMS names the folder with nearpath and its watchdog.
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

import drivers
import servers
from platform_under_test import HOST, Platform

SERVERS = {"postgres": servers.PostgreSql, "mysql": servers.MariaDb, "redis": servers.Redis}
# How the connection logs in and is pooled: additions to the declaration of the destination.
NODE_LOGIN = {"password": "secret:password"}
LOGINS = {
    "function-login": {},
    "node-login": NODE_LOGIN | {"user": servers.USER},
    "node-session": NODE_LOGIN | {"user": servers.USER, "mode": "session"},
    "node-transaction": NODE_LOGIN | {"user": servers.USER, "mode": "transaction"},
}
# How a function asks for TLS: libpq, asyncpg, pgx and node-postgres read the first, postgres.js the last.
TLS_SETTINGS = {"PGSSLMODE": "verify-full", "PGSSLROOTCERT": "/etc/ssl/certs/ca-certificates.crt", "PGSSL": "verify-full"}
LOGINS |= {f"{name}-tls": LOGINS[name] for name in ("function-login", "node-login")}
MATRIX = {"postgres": ["function-login", "node-login", "node-session", "function-login-tls", "node-login-tls"], "mysql": ["function-login", "node-login", "node-transaction"], "redis": ["function-login", "node-login"]}


def environment(driver, host, port, password=servers.PASSWORD):
    user, database = ("", "") if driver.database == "redis" else (servers.USER, servers.DATABASE)
    common = {"DB_HOST": host, "DB_PORT": str(port), "DB_USER": user, "DB_PASSWORD": password, "DB_NAME": database}
    return common | {"PYTHONPATH": "packages", "PYTHONDONTWRITEBYTECODE": "1"}


def destination(driver, login, port):
    """Returns the declared destination. Redis' account without a name is `default`."""
    declared = {"to": f"{HOST}:{port}", "protocol": driver.database, "max": 20} | LOGINS[login]
    if driver.database == "redis" and "user" in declared:
        declared["user"] = "default"
    return declared


def function(driver, login, folder, port):
    logs_in, has_tls = login.startswith("function-login"), login.endswith("-tls")
    # With the node's login the function's own password does not matter.
    password = servers.PASSWORD if logs_in else "wrong"
    tls = TLS_SETTINGS if has_tls else {}
    return {
        "handler": str(folder),
        "fprocess": driver.command,
        "environment": environment(driver, HOST, port, password) | tls | {"mode": "serializing"},
        "secrets": [] if logs_in else ["password"],
        "egress": [destination(driver, login, port)],
        "limits": {"memory": "1Gi", "pids": "256"},
    }


class DriverMatrix(unittest.TestCase):
    """Each driver against its server: alone, and through the node."""

    maxDiff = None

    @classmethod
    def setUpClass(cls):
        programs = pathlib.Path(os.environ["NEARPATH_TEST_PROGRAMS"])
        target = pathlib.Path(os.environ.get("DRIVERS_FOLDER", programs / "drivers")).resolve()
        cls.folders = {language: drivers.build(language, target) for language in drivers.BUILDS}
        workspace = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="nearpath-drivers-"))
        cls.servers = {}
        for name, server in SERVERS.items():
            cls.servers[name] = server(pathlib.Path(workspace, name))
            cls.addClassCleanup(cls.servers[name].stop)
        cls.platform = Platform(programs, pathlib.Path(workspace, "nearpath"))
        cls.addClassCleanup(cls.platform.stop)
        functions = {
            f"{driver.name}-{login}": function(driver, login, cls.folders[driver.language], cls.servers[driver.database].port)
            for driver in drivers.DRIVERS
            for login in MATRIX[driver.database]
        }
        cls.platform.deploy(functions)

    def alone(self, driver):
        """Returns the output of a driver's program beside its server."""
        variables = os.environ | environment(driver, "127.0.0.1", self.servers[driver.database].port)
        done = subprocess.run(driver.command.split(), cwd=self.folders[driver.language], env=variables, text=True, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def check(self, driver):
        expected = self.alone(driver)
        self.assertTrue(expected)
        for login in MATRIX[driver.database]:
            # The second run uses the connections of the first.
            for run in (1, 2):
                with self.subTest(login=login, run=run):
                    status, output = self.platform.call(f"{driver.name}-{login}")
                    self.assertEqual(output, expected)
                    self.assertEqual(status, 200)


for _driver in drivers.DRIVERS:
    setattr(DriverMatrix, f"test_{_driver.name.replace('-', '_')}", lambda self, driver=_driver: self.check(driver))

if __name__ == "__main__":
    unittest.main()
