"""PostgreSQL, MariaDB and Redis on loopback, each with an empty database and a password."""

import pathlib
import shutil
import socket
import subprocess
import time

USER, PASSWORD, DATABASE = "app", "only-for-tests", "app"
DEADLINE = 60


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_until(ready, process, log):
    """Waits until `ready()` is true; fails with the log of the process if it ends or never is."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and process.poll() is None:
        if ready():
            return
        time.sleep(0.05)
    raise RuntimeError(f"{process.args[0]} is not ready:\n{pathlib.Path(log).read_text()}")


class Server:
    """A server process in a folder of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.folder.mkdir()
        self.port = free_port()
        self.prepare()
        log = self.folder / "log"
        with open(log, "w") as output:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            wait_until(self.accepts, self.process, log)
            self.fill()
        except BaseException:
            self.stop()
            raise

    def accepts(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def prepare(self):
        """Creates files that the server needs."""

    def fill(self):
        """Creates what the drivers' programs expect."""

    def stop(self):
        self.process.terminate()
        self.process.wait(DEADLINE)


class PostgreSql(Server):
    """The newest PostgreSQL of the machine, with SCRAM."""

    def prepare(self):
        self.programs = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
        shutil.chown(self.folder, "postgres", "postgres")
        # The server's user must reach the folder through its parents.
        for parent in list(self.folder.parents)[:-1]:
            if str(parent).startswith("/tmp/"):
                parent.chmod(parent.stat().st_mode | 0o011)
        secret = self.folder / "password"
        secret.write_text(PASSWORD)
        shutil.chown(secret, "postgres")
        self.as_owner("initdb", "-D", self.folder / "data", "-U", USER, "--auth=scram-sha-256", f"--pwfile={secret}", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync")

    def as_owner(self, program, *arguments):
        subprocess.run(self.owned(program, *arguments), check=True, stdout=subprocess.DEVNULL, cwd="/")

    def owned(self, program, *arguments):
        """PostgreSQL's server refuses to run as root."""
        return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", str(self.programs / program), *map(str, arguments)]

    def command(self):
        return self.owned("postgres", "-D", self.folder / "data", "-c", f"port={self.port}", "-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "timezone=UTC")

    def fill(self):
        login = f"host=127.0.0.1 port={self.port} user={USER} password={PASSWORD} dbname=postgres"
        self.as_owner("psql", "-qd", login, "-c", f"CREATE DATABASE {DATABASE}")


class MariaDb(Server):
    """MariaDB, with an account, and a procedure that doubles."""

    OPTIONS = ["--no-defaults", "--user=root", "--innodb-buffer-pool-size=16M", "--innodb-log-file-size=8M", "--local-infile=1"]

    def prepare(self):
        data = f"--datadir={self.folder / 'data'}"
        install = ["mariadb-install-db", "--no-defaults", "--user=root", "--skip-test-db", "--auth-root-authentication-method=normal", data]
        subprocess.run(install, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def command(self):
        place = [f"--datadir={self.folder / 'data'}", f"--socket={self.folder / 'socket'}", f"--tmpdir={self.folder}"]
        return ["mariadbd", *self.OPTIONS, *place, "--bind-address=127.0.0.1", "--skip-name-resolve", f"--port={self.port}"]

    def fill(self):
        statements = f"""CREATE DATABASE {DATABASE}; CREATE USER {USER} IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO {USER};
            CREATE PROCEDURE {DATABASE}.twice(n INT) SELECT 2 * n;"""
        subprocess.run(["mariadb", "--no-defaults", f"--socket={self.folder / 'socket'}", "-uroot"], input=statements, text=True, check=True)


class Redis(Server):
    """Redis with a password."""

    def command(self):
        return ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--requirepass", PASSWORD, "--dir", str(self.folder)]
