"""A job of three workers in separate places: one sends batches, one forwards them, one counts. Prints the rate as JSON.

`forward.py SETTINGS`, JSON with `rendezvous`, `trust` (a file), `key` (hexadecimal), `places` (a command for each worker), `seconds`.
"""

import json
import os
import pathlib
import resource
import sys
import tempfile
import time

from nearpath import dataflow as flow

BATCH = 256 << 10
WARM_UP = 1.0  # seconds in which queues fill


def forwarding(seconds, result):
    class Feed(flow.Worker):
        codec = "raw"

        def input(self, port):
            batch, until = bytes(BATCH), time.monotonic() + WARM_UP + seconds + 0.5
            while time.monotonic() < until:
                yield batch

    class Forward(flow.Worker):
        codec = "raw"

        def process(self, items):
            return items

    class Count(flow.Worker):
        codec = "raw"
        first = since = last = None
        count = 0

        def process(self, items):
            now = time.monotonic()
            for batch in items:
                self.first = self.first or now
                if self.since is None and now - self.first >= WARM_UP:
                    self.since = now
                elif self.since and now - self.since <= seconds:
                    self.count, self.last = self.count + len(batch), now
            return ()

        def finish(self):
            spent = resource.getrusage(resource.RUSAGE_SELF)
            text = json.dumps({"octets": self.count, "seconds": self.last - self.since, "cpu": spent.ru_utime + spent.ru_stime})
            pathlib.Path(result).write_text(text)
            return ()

    return flow.stage(Feed) >> flow.stage(Forward) >> flow.stage(Count)


def main():
    settings = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        result = os.path.join(folder, "result")
        job = flow.run(
            forwarding,
            on=flow.Processes(lambda worker: settings["places"][worker.split(".")[0]]),
            arguments={"seconds": settings["seconds"], "result": result},
            rendezvous=settings["rendezvous"],
            key=bytes.fromhex(settings["key"]),
            trust=settings["trust"],
            progress=False,
        )
        counted = json.loads(pathlib.Path(result).read_text())
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(json.dumps({**counted, "all": spent.ru_utime + spent.ru_stime, "paths": job.report.paths}))


if __name__ == "__main__":
    main()
