"""Runs one attempt of a local worker in its own process."""

import contextlib
import faulthandler
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from . import _native
from ._attempt import ControlMessage
from ._backend import Plan
from ._pipe import Pipe
from ._run import StateReporter, WorkerRun, report_exception, work
from ._workers import Worker

# Seconds between two progress reports of a worker.
REPORT_INTERVAL = 0.25
# The job sends this signal for the Python stacks. A real-time signal, because programs use SIGUSR1 and SIGUSR2 themselves.
STACKS_SIGNAL = signal.SIGRTMAX - 3


@dataclass(frozen=True)
class WorkerStart:
    """What a started process needs besides its connection. Pickled for `forkserver` and `spawn`."""

    plan: Plan
    make: Callable[[], Worker]
    token: bytes
    number: int  # identifies the start in heartbeats
    heartbeat_interval: float  # s


@dataclass(frozen=True)
class InheritedFiles:
    """Descriptors that all workers of a job share."""

    heartbeats: int  # a pipe to the job
    stacks: int  # a file for the Python stacks


def run_process(start: WorkerStart, connection: socket.socket, files: InheritedFiles, parent: int) -> NoReturn:
    """Runs the worker and ends the process with its exit code."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the job receives it and ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.register(STACKS_SIGNAL, files.stacks)
        # After the handler: the job sends the signal only to workers that have sent a heartbeat.
        _native.start_heartbeat(files.heartbeats, start.number, start.heartbeat_interval)
        _native.die_with_parent(parent)
        code = _run_worker(start.plan, start.make, Pipe(connection), start.token)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)


def _run_worker(plan: Plan, make: Callable[[], Worker], pipe: Pipe, token: bytes) -> int:
    """Runs one attempt in the worker process and returns its exit code."""
    listener = _native.Listener()
    reporter = StateReporter(pipe.send, attempt=plan.attempt)
    reporter.change(port=listener.port)
    try:
        running = WorkerRun(plan, make(), reporter)
    except BaseException as error:
        report_exception(reporter, error)
        return 1
    message = _first_message(pipe)

    def connect(orders: str) -> _native.Streams:
        ports = {name: port for name, port in message["ports"].items() if port is not None}  # the others start later
        running.streams = streams = _native.Streams(orders, listener, token, ports)
        running.handle(message)
        threading.Thread(target=_listen, args=(pipe, running), daemon=True).start()
        return streams

    return work(running, connect)


def _first_message(pipe: Pipe) -> ControlMessage:
    """Waits for the job's first message, which follows after all workers have joined."""
    while (messages := pipe.receive()) is not None:
        if messages:
            return messages[-1]
    os._exit(3)  # the job ended before all workers had joined


def _listen(pipe: Pipe, running: WorkerRun) -> None:
    """Handles the job's messages and reports progress, on its own thread."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(REPORT_INTERVAL):
                running.reporter.change(report=running.report())
                continue
            messages = pipe.receive()
            if messages is None:
                os._exit(3)  # the job's process has ended
            for message in messages:
                running.handle(message)
