"""A Lambda for tests: the stand-in as a process, functions of a module of theirs, and doors where they wait."""

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

from cases import Alarm
from fixtures import DEADLINE, skip

STANDIN = pathlib.Path(__file__).resolve().parents[2] / "standin" / "aws_lambda"
ROLE = "arn:aws:iam::123456789012:role/worker"


def need():
    """What the stand-in is made of, or the test is skipped."""
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


class Lambdas:
    """A stand-in that runs."""

    def __init__(self, *arguments):
        self.log = tempfile.NamedTemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, str(STANDIN), "--log", self.log.name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        said = dict(word.split("=", 1) for word in self.process.stdout.readline().split()[1:])
        self.environment = said
        self.url = said["AWS_ENDPOINT_URL_LAMBDA"]

    def client(self, **settings):
        """One of boto3's, as nearpath's own users would make it."""
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

    def written(self):
        return pathlib.Path(self.log.name).read_text()

    def close(self):
        self.process.stdin.close()
        self.process.wait(DEADLINE)
        self.process.stdout.close()
        self.log.close()


class DispatchSocket:
    """Where a function says that it is there, and waits to be let go."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.socket.settimeout(DEADLINE)
        self.port = self.socket.getsockname()[1]

    def come(self):
        """Who says that it is there. Others are sent away: on a machine of many tests a port may be meant for somebody before."""
        while True:
            line, _ = self.socket.accept()
            line.settimeout(DEADLINE)
            if line.recv(4) == b"here":
                return line
            line.close()

    @staticmethod
    def go(line):
        with line:
            line.sendall(b"go")


def zipped(folder, **modules):
    path = pathlib.Path(folder) / "functions.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in modules.items():
            archive.writestr(f"{name}.py", text)
    return path


def until(what):
    """Until it is true; a test that waits for ever is ended by its alarm."""
    while not what():
        time.sleep(0.01)


def orders(**more):
    return json.dumps({"version": 1, "job": "count-1", "worker": "map.0", **more}).encode()


def state(pid):
    """A process's, as ps has it: T is stopped."""
    return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]


class OnLambda(Alarm):
    """Tests with a stand-in for all of them."""

    arguments, seconds = (), 2 * DEADLINE

    @classmethod
    def setUpClass(cls):
        need()
        cls.lambdas = Lambdas(*cls.arguments)
        cls.addClassCleanup(cls.lambdas.close)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        before = dict(os.environ)
        cls.addClassCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        os.environ.update(cls.lambdas.environment)

    def place(self, function, **said):
        from nearpath.dataflow import aws

        return self.enterContext(contextlib.closing(aws.Lambda(function, **said)))

    def end(self, started):
        return started.wait(DEADLINE)
