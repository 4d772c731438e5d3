"""A real `nearpath up`, and functions of a folder on it."""

import base64
import contextlib
import http.client
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import nearpath
from rendezvous_fixture import program
from fixtures import DEADLINE, free_port, skip

HERE = pathlib.Path(__file__).parent


class Up:
    """Its gateway is at `url`; `password` is the administrator's."""

    def __init__(self, *options):
        words = [program("nearpath"), "up", "--watchdog", program("nearpath-watchdog"), *options]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nearpath-up-"))
        self.folder.chmod(0o755)  # functions run as users of their own
        self.port, admin = free_port(), free_port()
        self.url, self.data = f"http://127.0.0.1:{self.port}", self.folder / "data"
        listen = ["--listen", f"127.0.0.1:{self.port}", "--admin-listen", f"127.0.0.1:{admin}"]
        self.log = open(self.folder / "log", "w+")
        words += ["--data-dir", str(self.data), *listen, "--drain-timeout", "1s"]
        self.process = subprocess.Popen(words, stderr=self.log, stdout=self.log, start_new_session=True)
        try:
            self.until(lambda: "is up" in self.read_log() or self.refused(), "nearpath is up")
        except BaseException:
            self.stop()
            raise
        self.password = (self.data / "basic-auth-password").read_text().strip()

    def refused(self):
        """Where not even user namespaces are permitted."""
        if self.process.poll() is not None and os.geteuid() != 0:
            skip(f"needs `nearpath up`, which says: {self.read_log().strip()[-500:]}")

    def read_log(self):
        return (self.folder / "log").read_text()

    def until(self, holds, what):
        """What must become so."""
        end = time.monotonic() + DEADLINE
        while not (found := holds()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"not within {DEADLINE} s: {what}; nearpath said:\n{self.read_log()[-4000:]}")
            time.sleep(0.05)
        return found

    def handler(self, **files):
        """A folder with the SDK, the files of `functions/`, and these."""
        folder = self.folder / f"handler-{len(list(self.folder.iterdir()))}"
        shutil.copytree(HERE / "functions", folder)
        shutil.copytree(pathlib.Path(nearpath.__file__).parent, folder / "nearpath", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return folder

    def deploy(self, name, handler, command, ready=1, **spec):
        """Waits until its instances are ready."""
        image = {"service": name, "image": f"file://{handler}", "envProcess": command}
        status, text = self.ask("POST", "/system/functions", {**image, **spec})
        assert status == 202, text
        self.until(lambda: self.described(name)["availableReplicas"] >= ready, f"{name} is ready: {self.described(name)}")

    def described(self, name):
        return self.ask("GET", f"/system/function/{name}")[1]

    def scale(self, name, replicas):
        status, text = self.ask("POST", f"/system/scale-function/{name}", {"serviceName": name, "replicas": replicas})
        assert status == 202, text
        self.until(lambda: self.described(name)["availableReplicas"] == replicas, f"{name} has {replicas} instances")

    def logs(self, name):
        """What its instances wrote."""
        return "\n".join(line["text"] for line in self.logged(name))

    def logged(self, name):
        """The same, line by line."""
        status, text = self.ask("GET", f"/system/logs?name={name}&follow=0", raw=True)
        assert status == 200, text
        return [json.loads(line) for line in text.splitlines()]

    def ask(self, method, path, body=None, raw=False):
        """As the administrator."""
        password = base64.b64encode(f"admin:{self.password}".encode()).decode()
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)) as connection:
            connection.request(
                method, path, body and json.dumps(body), {"Authorization": f"Basic {password}", "Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            text = answer.read()
        if raw:
            return answer.status, text
        with contextlib.suppress(ValueError):
            return answer.status, json.loads(text)
        return answer.status, text

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            print("nearpath up did not end by itself", file=sys.stderr)
        self.log.close()
        shutil.rmtree(self.folder)
