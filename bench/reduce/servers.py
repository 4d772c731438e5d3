"""The servers between workers: an object store whose objects lie in memory, Redis that writes nothing to disk, and a rendezvous."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools"


@dataclass
class Lab:
    """Where servers and workers are: on this machine, or on several in the lab of `nearpath-bench reduce`."""

    slow: float = 1.0
    server: str | None = None  # the namespace of the machine that all reach
    addresses: list[str] = field(default_factory=lambda: ["127.0.0.1"])  # its own
    machines: list[str] = field(default_factory=list)  # namespaces of those with workers

    @property
    def enter(self) -> list[str]:
        """The command that goes before a server's."""
        return ["nsenter", f"--net={self.server}"] if self.server else []


def labs(path: str | None) -> list[Lab]:
    if path is None:
        return []
    with open(path) as file:
        return [Lab(**told) for told in json.load(file)]


@contextlib.contextmanager
def all_of(lab: Lab) -> Iterator[list[str]]:
    """They run meanwhile; what `once.py` has to be told of them."""
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(s3(lab))
        words = ["--redis", lab.addresses[0], str(stack.enter_context(redis(lab)))]
        if lab.machines:
            words += ["--machines", *lab.machines, "--rendezvous", *stack.enter_context(rendezvous(lab))]
        os.environ |= endpoint
        yield words


@contextlib.contextmanager
def s3(lab: Lab) -> Iterator[dict[str, str]]:
    """What its clients need in their environment."""
    folder = tempfile.mkdtemp(prefix="nearpath-reduce-", dir="/dev/shm")
    words = [*lab.enter, sys.executable, str(TOOLS / "s3"), "serve", folder, lab.addresses[0]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        try:
            said = [lines(server).readline() for _ in range(5)]
            told = [pair.split("=", 1) for line in said for pair in line.removeprefix("export ").split()]
            if len(told) < 5:
                raise RuntimeError("the object store did not start: see what tools/s3 says")
            yield {name: value for name, value in told}
        finally:
            server.communicate()
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def redis(lab: Lab) -> Iterator[int]:
    """Its port."""
    port = free_port()
    words = [*lab.enter, "redis-server", "--port", str(port), "--bind", lab.addresses[0], "--save", "", "--protected-mode", "no"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            if not any("Ready to accept connections" in line for line in lines(server)):
                raise RuntimeError("redis-server did not start")
            yield port
        finally:
            server.kill()


@contextlib.contextmanager
def rendezvous(lab: Lab) -> Iterator[tuple[str, str, str]]:
    """Its URL, and the files of its key and of its certificate."""
    with tempfile.TemporaryDirectory() as folder:
        key, private, certificate = (os.path.join(folder, name) for name in ("rendezvous.key", "tls.key", "tls.pem"))
        certify(lab.addresses[0], private, certificate)
        words = [*lab.enter, "nearpath", "rendezvous", "--listen", f"{lab.addresses[0]}:8443", "--admin-listen", "127.0.0.1:0"]
        words += ["--key", key, "--tls-key", private, "--tls-cert", certificate, "--json"]
        for address in lab.addresses:
            words += ["--observe", f"{address}:3478"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            try:
                yield json.loads(lines(server).readline())["rendezvous"], key, certificate
            finally:
                server.kill()


def certify(address: str, private: str, certificate: str) -> None:
    """For itself, for an hour's use."""
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=rendezvous"]
    words += ["-addext", f"subjectAltName=IP:{address}", "-addext", "basicConstraints=critical,CA:FALSE"]
    subprocess.run([*words, "-keyout", private, "-out", certificate], check=True, capture_output=True)


def lines(server: "subprocess.Popen[str]") -> Any:
    return server.stdout


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
