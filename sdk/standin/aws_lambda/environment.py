"""An execution environment: a sandbox with AWS's own runtime interface client in it, and the Runtime API that it asks for work.

The code lies read-only in /var/task, /tmp is the environment's own, nothing is installed but what Lambda's runtime has. Between two
invocations all its processes are stopped.
"""

import concurrent.futures
import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time

# For starting. Lambda gives ten seconds; a small machine is slower.
INIT = 60
TAIL = 4096
# PR_SET_PDEATHSIG, which ends a sandbox with this process, goes off when the *thread* that started it ends: this one does not.
starter = concurrent.futures.ThreadPoolExecutor(1)


class Outcome:
    """The result of an invocation. `error` is None or the value of X-Amz-Function-Error."""

    def __init__(self, body, error=None):
        self.body, self.error = body, error


class Invocation:
    def __init__(self, request_id, payload, seconds, arn):
        self.id, self.payload, self.seconds, self.arn = request_id, payload, seconds, arn
        self.deadline = None
        self.outcome = concurrent.futures.Future()

    def end(self, outcome):
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # the first one counts
            self.outcome.set_result(outcome)


class Environment:
    def __init__(self, name, sandbox, runtime_api, log):
        self.name, self.log, self.invocations, self.current = name, log, 0, None
        self._change, self._offered, self._init = threading.Condition(), None, concurrent.futures.Future()
        self._tail, self._reading = b"", threading.Lock()
        self.server = runtime_api(self)
        output, theirs = os.pipe()
        self._output = output
        command = sandbox(f"127.0.0.1:{self.server.server_address[1]}")
        self.process = starter.submit(subprocess.Popen, command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs).result()
        os.close(theirs)
        threading.Thread(target=self._attend, daemon=True).start()

    # What the function's side does with it.

    def invoke(self, invocation):
        """The outcome, and whether the environment can be used again."""
        self.invocations += 1
        self._tail = b""
        started = self._started(invocation)
        if started is not None:
            return started, False
        with self._change:
            self.current = self._offered = invocation
            self._change.notify_all()
        try:
            return invocation.outcome.result(invocation.seconds), self.process.poll() is None
        except TimeoutError:
            self.kill()
            return (
                invocation_error(invocation, "Sandbox.Timedout", f"Task timed out after {invocation.seconds:.2f} seconds"),
                False,
            )

    def _started(self, invocation):
        """Returns None after the first request for work; otherwise the reported error."""
        self.current = invocation
        try:
            wrong = self._init.result(INIT)
        except TimeoutError:
            self.kill()
            return invocation_error(invocation, "Sandbox.Timedout", f"Init timed out after {INIT} seconds")
        if wrong is not None:
            self.kill()
        return wrong and Outcome(wrong, "Unhandled")

    def kill(self):
        self.process.kill()

    def tail(self):
        """The end of what the current invocation has written."""
        self._read()
        return self._tail

    # What its runtime asks.

    def next(self):
        """Blocks until there is work; frozen meanwhile."""
        if not self._init.done():
            self._init.set_result(None)
        with self._change:
            if self._offered is None and self.process.poll() is None:
                self.freeze()
            self._change.wait_for(lambda: self._offered is not None or self.process.poll() is not None)
            invocation, self._offered = self._offered, None
        if invocation is not None:
            self.thaw()
            invocation.deadline = time.time() + invocation.seconds
        return invocation

    def init_failed(self, body):
        if not self._init.done():
            self._init.set_result(body)

    def freeze(self):
        """All processes. A stopped one starts no other, so that a round without a new one is the last."""
        stopped = set()
        while new := processes(self.process.pid) - stopped:
            for pid in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= new

    def thaw(self):
        for pid in processes(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    # What it writes, and its end.

    def _attend(self):
        while self._read():
            select.select([self._output], [], [])
        code = self.process.wait()
        how = f"signal: {signal.Signals(-code).name[3:].lower()}" if code < 0 else f"exit status {code}"
        how = how.replace("signal: kill", "signal: killed")
        self.init_failed(error_body("Runtime.ExitError", f"Runtime exited with error: {how}"))
        with self._change:
            if self.current:
                self.current.end(invocation_error(self.current, "Runtime.ExitError", f"Runtime exited with error: {how}"))
            self._change.notify_all()
        self.server.shutdown()
        self.server.server_close()
        with self._reading:
            os.close(self._output)
            self._output = None

    def _read(self):
        """All that is there; False at the end."""
        with self._reading:
            while self._output is not None and select.select([self._output], [], [], 0)[0]:
                if not (part := os.read(self._output, 1 << 16)):
                    return False
                self.log.write(part)
                self.log.flush()
                self._tail = (self._tail + part)[-TAIL:]
            return True


def error_body(kind, message):
    return json.dumps({"errorType": kind, "errorMessage": message}).encode()


def invocation_error(invocation, kind, message):
    return Outcome(error_body(kind, f"RequestId: {invocation.id} Error: {message}"), "Unhandled")


def processes(root):
    """Returns a process and all its descendants."""
    children = {}
    for entry in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
            children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(entry))
    found, new = set(), [root]
    while new:
        pid = new.pop()
        found.add(pid)
        new += children.get(pid, ())
    return found
