"""Runs a worker with orders from standard input until the job ends.

    python -m nearpath.dataflow [--tied]

`--tied`: the orders are one line, and the worker ends with standard input. The exit code is 0 after success, 1 after an exception,
3 after the loss of the job.

    python -m nearpath.dataflow serve MODULE…

This command serves workers as a function.
"""

import os
import signal
import socket
import sys
import threading

from .remote_worker import MAX_ORDERS_BYTES, LOST, exit_process, run


def watch_stdin() -> None:
    """Ends this process when the parent's pipe on stdin closes."""
    while os.read(0, 4096):
        pass
    exit_process(LOST)


def handle_sigterm() -> None:
    """Handles SIGTERM also during native waits, when Python runs no signal handlers."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)

    def wait_for_sigterm() -> None:
        while signal.SIGTERM not in reader.recv(64):
            pass
        writer.close()
        exit_process(128 + signal.SIGTERM)

    threading.Thread(target=wait_for_sigterm, name="signals", daemon=True).start()


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["serve"]:
        from .function import main as serve

        serve(arguments[1:])
        return 0
    if arguments not in ([], ["--tied"]):
        print(__doc__, file=sys.stderr)
        return 2
    handle_sigterm()
    if not arguments:
        return run(sys.stdin.buffer.read(MAX_ORDERS_BYTES + 1))
    orders = sys.stdin.buffer.readline(MAX_ORDERS_BYTES + 2).rstrip(b"\n")
    threading.Thread(target=watch_stdin, name="tie", daemon=True).start()
    return run(orders)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code)  # does not wait for threads of the worker's code
