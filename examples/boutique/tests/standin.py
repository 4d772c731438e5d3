"""Runs the shop without nearpath. `email` is a script; `currency` and the native shop are compiled."""

import os
import pathlib
import subprocess
import sys

BOUTIQUE = pathlib.Path(__file__).resolve().parent.parent
ROOT = BOUTIQUE.parent.parent
sys.path.insert(0, str(BOUTIQUE.parent))

from testing import standin  # noqa: E402

edges = standin.edges


def program(name):
    """Returns the newest build of a compiled service."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    built = [target / profile / name for profile in ("debug", "release", "dist") if (target / profile / name).exists()]
    if not built:
        raise RuntimeError(f"{name} is not built: `make build` builds boutique-currency, `make build-bench` boutique-native")
    return str(max(built, key=lambda place: place.stat().st_mtime))


class StandIn(standin.StandIn):
    """The running shop."""

    def __init__(self, native=False):
        self.native = native
        super().__init__(BOUTIQUE / "stack.yml")

    def start(self, function):
        name, command = function.name, function.command
        if self.native:
            command = f"{program('boutique-native')} --service {name} --transport http --listen 127.0.0.1:PORT"
        elif name == "email":
            return  # one process per request
        elif name == "currency":
            command = program("boutique-currency")
        super().start(function._replace(command=command))

    def answer(self, name, method, path, headers, body):
        if name != "email" or self.native or name in self.broken:
            return super().answer(name, method, path, headers, body)
        done = subprocess.run(["sh", "email.sh"], cwd=BOUTIQUE / "services", input=body, capture_output=True, timeout=30)
        return (200 if done.returncode == 0 else 500), [], done.stdout or done.stderr
