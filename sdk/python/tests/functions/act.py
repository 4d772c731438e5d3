"""Plays a worker: does what the arguments of its orders say."""

import json
import os
import signal
import sys

asked = json.load(sys.stdin)["code"]["arguments"]
print("about to", asked["do"], file=sys.stderr, flush=True)
if asked["do"] == "wait":
    signal.pause()
if asked["do"] == "kill":
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
if asked["do"] == "fail":
    raise SystemExit("it cannot be done")
print("done")
