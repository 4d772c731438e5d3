"""A Lambda test double as a process, functions for it, and a server on which they wait."""

import contextlib
import importlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile

from cases import DeadlineCase
from fixtures import DEADLINE, skip

STANDIN = pathlib.Path(__file__).resolve().parents[2] / "standin" / "aws_lambda"
ROLE = "arn:aws:iam::123456789012:role/worker"


def require_packages():
    """Skips the test if the double's requirements are missing."""
    try:
        for name in ("awslambdaric", "boto3", "elftools"):
            importlib.import_module(name)
    except ImportError as missing:
        skip(f"workers on Lambda: needs the packages of sdk/python/tests/requirements.txt ({missing})")
    probe = ["bwrap", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    if not shutil.which("bwrap"):
        skip("workers on Lambda: needs bwrap: sudo apt-get install -y bubblewrap")
    if (done := subprocess.run(probe, capture_output=True, text=True)).returncode != 0:
        skip(f"workers on Lambda: bwrap makes no sandbox here: {done.stderr.strip()}")


class LambdaDouble:
    """A running test double of Lambda."""

    def __init__(self, *arguments):
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, str(STANDIN), "--log", self.log.name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        variables = dict(field.split("=", 1) for field in self.process.stdout.readline().split()[1:])
        self.environment = variables
        self.url = variables["AWS_ENDPOINT_URL_LAMBDA"]

    def client(self, **settings):
        """Returns a client of boto3."""
        import boto3
        from botocore.config import Config

        keys = {
            "aws_access_key_id": self.environment["AWS_ACCESS_KEY_ID"],
            "aws_secret_access_key": self.environment["AWS_SECRET_ACCESS_KEY"],
        }
        config = Config(**{"retries": {"total_max_attempts": 1}, "read_timeout": 1000, **settings})
        return boto3.client("lambda", endpoint_url=self.url, region_name="eu-central-1", config=config, **keys)

    def create(self, name, zipped, handler="nearpath.dataflow.aws.handler", timeout=30, concurrency=None, **variables):
        client = self.client()
        code, environment = {"ZipFile": pathlib.Path(zipped).read_bytes()}, {"Variables": variables}
        client.create_function(
            FunctionName=name,
            Runtime="python3.13",
            Role=ROLE,
            Handler=handler,
            Code=code,
            Timeout=timeout,
            Environment=environment,
        )
        if concurrency is not None:
            client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=concurrency)
        client.close()

    def environments(self, name):
        with urllib.request.urlopen(f"{self.url}/standin/environments", timeout=DEADLINE) as answer:
            return json.load(answer)[name]

    def read_log(self):
        return pathlib.Path(self.log.name).read_text()

    def close(self):
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()
        self.log.close()


class HoldServer:
    """Accepts connections of functions, which wait on them until their release."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(DEADLINE)
        self.port = self.socket.getsockname()[1]

    def accept(self):
        """Returns the connection of a waiting function. Closes others, because a port may have had another use before."""
        while True:
            connection, _ = self.socket.accept()
            connection.settimeout(DEADLINE)
            if connection.recv(4) == b"here":
                return connection
            connection.close()

    @staticmethod
    def release(connection):
        with connection:
            connection.sendall(b"go")


def zipped(folder, **modules):
    path = pathlib.Path(folder) / "functions.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in modules.items():
            archive.writestr(f"{name}.py", text)
    return path


def wait_until(condition):
    """Waits for a condition, within the test's deadline."""
    while not condition():
        time.sleep(0.01)


def orders(**fields):
    return json.dumps({"version": 1, "job": "count-1", "worker": "map.0", **fields}).encode()


def process_state(pid):
    """Returns the state of a process as in ps(1): T is stopped."""
    return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]


class LambdaCase(DeadlineCase):
    """Tests that share a Lambda double."""

    arguments, seconds = (), 2 * DEADLINE

    @classmethod
    def setUpClass(cls):
        require_packages()
        cls.lambdas = LambdaDouble(*cls.arguments)
        cls.addClassCleanup(cls.lambdas.close)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        before = dict(os.environ)
        cls.addClassCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update(cls.lambdas.environment)

    def place(self, function, **options):
        from nearpath.dataflow import aws

        return self.enterContext(contextlib.closing(aws.Lambda(function, **options)))

    def wait_ended(self, started):
        return started.wait(DEADLINE)
