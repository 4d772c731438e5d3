"""Serves workers that run `scripted_worker.py`, two at a time."""

import sys

from nearpath.dataflow import function

if __name__ == "__main__":
    secret = function.read_secret(sys.argv[1]) if sys.argv[1:] else None
    with function.Server(["jobs"], workers=2, secret=secret, command=[sys.executable, "scripted_worker.py"], interval=0.2) as server:
        function.run(server)
