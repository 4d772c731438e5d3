"""Acts as a worker: runs the action in the arguments of its orders."""

import json
import os
import pathlib
import signal
import sys
import tempfile

orders = json.load(sys.stdin)
arguments = orders["code"]["arguments"]
print(orders["worker"], "is about to", arguments["action"], file=sys.stderr, flush=True)
if arguments["action"] == "wait":
    signal.pause()
if arguments["action"] == "leave":  # a child that would outlive the worker
    child = os.fork()
    if child == 0:
        signal.pause()
    pathlib.Path(arguments["file"]).write_text(str(child))
    signal.pause()
if arguments["action"] == "litter":
    print(tempfile.mkdtemp(prefix=f"nearpath-worker-{os.getpid()}-"), file=sys.stderr)
    os.kill(os.getpid(), signal.SIGKILL)
if arguments["action"] == "chatter":
    for line in range(100_000):
        print("line", line, file=sys.stderr)
    raise SystemExit(4)
if arguments["action"] == "kill":
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
if arguments["action"] == "fail":
    raise SystemExit("it cannot be done")
