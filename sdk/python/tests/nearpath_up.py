"""A real `nearpath up` with functions from a folder."""

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


class NearpathUp:
    """Runs `nearpath up`. `url` is its gateway, `password` the administrator's password."""

    def __init__(self, *options):
        command = [program("nearpath"), "up", "--watchdog", program("nearpath-watchdog"), *options]
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nearpath-up-"))
        self.folder.chmod(0o755)  # functions run as other users
        self.port, admin = free_port(), free_port()
        self.url, self.data = f"http://127.0.0.1:{self.port}", self.folder / "data"
        listen = ["--listen", f"127.0.0.1:{self.port}", "--admin-listen", f"127.0.0.1:{admin}"]
        self.log = open(self.folder / "log", "w+")
        command += ["--data-dir", str(self.data), *listen, "--drain-timeout", "1s"]
        self.process = subprocess.Popen(command, stderr=self.log, stdout=self.log, start_new_session=True)
        try:
            self.wait_until(lambda: "is up" in self.read_log() or self.skip_if_refused(), "nearpath is up")
        except BaseException:
            self.stop()
            raise
        self.password = (self.data / "basic-auth-password").read_text().strip()

    def skip_if_refused(self):
        """Skips the test if user namespaces are not permitted."""
        if self.process.poll() is not None and os.geteuid() != 0:
            skip(f"needs `nearpath up`, which reports: {self.read_log().strip()[-500:]}")

    def read_log(self):
        return (self.folder / "log").read_text()

    def wait_until(self, condition, description):
        """Waits for a condition until the deadline, and returns its value."""
        end = time.monotonic() + DEADLINE
        while not (found := condition()):
            if time.monotonic() > end or self.process.poll() is not None:
                raise AssertionError(f"not within {DEADLINE} s: {description}; the log of nearpath:\n{self.read_log()[-4000:]}")
            time.sleep(0.05)
        return found

    def handler(self, **files):
        """Makes a folder with the SDK, the files of `functions/`, and the given ones."""
        folder = self.folder / f"handler-{len(list(self.folder.iterdir()))}"
        shutil.copytree(HERE / "functions", folder)
        shutil.copytree(pathlib.Path(nearpath.__file__).parent, folder / "nearpath", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        return folder

    def deploy(self, name, handler, command, ready=1, **spec):
        """Deploys a function and waits until its instances are ready."""
        image = {"service": name, "image": f"file://{handler}", "envProcess": command}
        status, text = self.send("POST", "/system/functions", {**image, **spec})
        assert status == 202, text
        self.wait_until(lambda: self.describe(name)["availableReplicas"] >= ready, f"{name} is ready: {self.describe(name)}")

    def describe(self, name):
        return self.send("GET", f"/system/function/{name}")[1]

    def scale(self, name, replicas):
        status, text = self.send("POST", f"/system/scale-function/{name}", {"serviceName": name, "replicas": replicas})
        assert status == 202, text
        self.wait_until(lambda: self.describe(name)["availableReplicas"] == replicas, f"{name} has {replicas} instances")

    def logs(self, name):
        """Returns the output of a function's instances."""
        return "\n".join(line["text"] for line in self.log_lines(name))

    def log_lines(self, name):
        """Returns the output of a function's instances as records."""
        status, text = self.send("GET", f"/system/logs?name={name}&follow=0", raw=True)
        assert status == 200, text
        return [json.loads(line) for line in text.splitlines()]

    def send(self, method, path, body=None, raw=False):
        """Sends a request as the administrator. Returns status and body."""
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
            print("nearpath up did not exit after SIGTERM", file=sys.stderr)
        self.log.close()
        shutil.rmtree(self.folder)
