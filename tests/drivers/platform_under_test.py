"""`nearpath up` in a folder of its own, and the functions that run the drivers' programs."""

import json
import os
import pathlib
import subprocess
import urllib.error
import urllib.request

import servers

HOST = "host.nearpath.internal"


class Platform:
    """A running nearpath with one function per driver and way of logging in."""

    def __init__(self, programs, folder):
        self.programs, self.folder = pathlib.Path(programs), pathlib.Path(folder)
        self.folder.mkdir()
        self.port = servers.free_port()
        self.environment = os.environ | {"NEARPATH_DATA_DIR": str(self.folder / "data"), "OPENFAAS_URL": f"http://127.0.0.1:{self.port}"}
        log = self.folder / "log"
        command = [self.programs / "nearpath", "up", "--listen", f"127.0.0.1:{self.port}", "--admin-listen", f"127.0.0.1:{servers.free_port()}"]
        with open(log, "w") as output:
            self.process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            servers.wait_until(self.is_ready, self.process, log)
            self.create_secret()
        except BaseException:
            self.stop()
            raise

    def is_ready(self):
        """The listener exists before the credentials do: only an answer says that the node serves."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz").close()
            return True
        except OSError:
            return False

    def create_secret(self):
        credentials = urllib.request.HTTPPasswordMgrWithPriorAuth()
        url = f"http://127.0.0.1:{self.port}/system/secrets"
        credentials.add_password(None, url, *[(self.folder / "data" / f"basic-auth-{part}").read_text() for part in ("user", "password")], is_authenticated=True)
        body = json.dumps({"name": "password", "value": servers.PASSWORD}).encode()
        request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
        urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(credentials)).open(request).close()

    def deploy(self, functions):
        """Deploys `functions`, a map as in a stack file, and waits until all are ready."""
        stack = self.folder / "stack.yml"
        # JSON is YAML.
        stack.write_text(json.dumps({"version": "1.0", "provider": {"name": "openfaas"}, "functions": functions}))
        self.run("deploy", "-f", stack, "--timeout", "120s")

    def run(self, *arguments):
        done = subprocess.run([self.programs / "nearpath", *arguments], env=self.environment, text=True, capture_output=True)
        if done.returncode:
            raise RuntimeError(f"nearpath {' '.join(map(str, arguments))}: {done.stdout}\n{done.stderr}")
        return done.stdout

    def call(self, function):
        """Returns status and response of a function."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/function/{function}", b"", 120) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode() + self.run("logs", function)

    def stop(self):
        self.process.terminate()
        self.process.wait(servers.DEADLINE)
