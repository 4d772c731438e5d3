"""Plays a worker: does what the arguments of its orders say."""

import json
import os
import pathlib
import signal
import sys
import tempfile

asked = json.load(sys.stdin)["code"]["arguments"]
print("about to", asked["do"], file=sys.stderr, flush=True)
if asked["do"] == "wait":
    signal.pause()
if asked["do"] == "leave":  # somebody who would go on
    child = os.fork()
    if child == 0:
        signal.pause()
    pathlib.Path(asked["file"]).write_text(str(child))
    signal.pause()
if asked["do"] == "litter":
    print(tempfile.mkdtemp(prefix=f"nearpath-worker-{os.getpid()}-"), file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)
if asked["do"] == "chatter":
    for line in range(100_000):
        print("line", line, file=sys.stderr)
    raise SystemExit(4)
if asked["do"] == "kill":
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
if asked["do"] == "fail":
    raise SystemExit("it cannot be done")
