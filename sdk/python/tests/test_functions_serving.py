"""Workers in functions: the function's server, alone and with a double of OpenFaaS's gateway."""

import contextlib
import http.client
import json
import os
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from cases import HERE, TemporaryFolderCase
from openfaas_double import OpenFaasDouble, orders
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import function
from nearpath.dataflow._callbacks import Callbacks
from nearpath.dataflow._exit_cause import PERHAPS_MEMORY


@contextlib.contextmanager
def redirected_stderr(log):
    """Redirects standard error, also that of workers."""
    before = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class WorkerServerCase(TemporaryFolderCase):
    """The function's server."""

    def setUp(self):
        super().setUp()
        self.enterContext(redirected_stderr(self.enterContext(tempfile.TemporaryFile())))
        command = [sys.executable, str(HERE / "functions" / "scripted_worker.py")]
        self.server = function.Server(["jobs"], port=0, workers=2, command=command, interval=0.1)
        serving = threading.Thread(target=self.server.serve_forever, daemon=True)
        serving.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.stop)


class WorkerServerTests(WorkerServerCase):
    def setUp(self):
        super().setUp()
        self.place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    @contextlib.contextmanager
    def send(self, body=b"", method="POST", **fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=DEADLINE)
        with contextlib.closing(connection):
            connection.request(method, "/", body, fields)
            yield connection.getresponse()

    def test_an_invalid_request_is_refused(self):
        for status, body, fields in (
            (400, b"hello", {}),
            (403, orders("end", module="os"), {}),
            (413, bytes(65_537), {}),
        ):
            with self.send(body, **fields) as answer:
                self.assertEqual(answer.status, status, answer.read())
        with socket.create_connection(self.server.server_address) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: workers\r\n\r\n")
            self.assertTrue(connection.makefile("rb").readline().startswith(b"HTTP/1.1 411 "))
        self.assertEqual(self.server.workers(), 0)

    def test_a_server_is_ready_until_it_stops(self):
        with self.send(method="GET") as answer:
            self.assertEqual(answer.status, 200)
        os.eventfd_write(self.server.stop_event, 1)
        with self.send(method="GET") as answer:
            self.assertEqual(answer.status, 503)
        with self.send(orders("end")) as answer:
            self.assertEqual((answer.status, answer.headers["Retry-After"]), (503, "1"))

    def test_a_request_above_the_worker_limit_is_refused(self):
        with self.send(orders("wait")) as one, self.send(orders("wait")) as other:
            self.assertEqual((one.status, other.status), (200, 200))
            with self.send(orders("end")) as third:
                self.assertEqual((third.status, third.headers["Retry-After"]), (429, "1"))

    def test_a_running_worker_sends_heartbeats(self):
        with self.send(orders("wait")) as answer:
            ages = [json.loads(answer.readline())["alive"] for _ in range(3)]
        self.assertEqual(ages, sorted(ages))

    def test_a_disconnected_caller_ends_the_worker_and_its_children(self):
        file = self.place / "left"
        with self.send(orders("leave", file=str(file))):
            while not (file.exists() and file.read_text()):
                time.sleep(0.01)
            left = os.pidfd_open(int(file.read_text()))
        self.assertTrue(select.select([left], [], [], DEADLINE)[0])
        os.close(left)

    def test_the_folder_of_a_killed_worker_is_removed(self):
        with self.send(orders("litter")) as answer:
            result = json.loads(answer.read().splitlines()[-1])
        cause, _, folder = result["reason"].partition(": ")
        self.assertEqual((result["ended"], cause), (-9, PERHAPS_MEMORY))
        self.assertIn("nearpath-worker-", folder)
        self.assertFalse(os.path.exists(folder))

    def test_the_end_of_long_error_output_is_reported(self):
        with self.send(orders("chatter")) as answer:
            *_, last = answer.read().splitlines()
        self.assertEqual(json.loads(last), {"ended": 4, "reason": "exit code 4: line 99999"})

    def test_a_missing_module_is_reported(self):
        command = [sys.executable, "-m", "nearpath.dataflow", "serve", "nowhere"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no module 'nowhere'", done.stderr)

    def test_a_missing_secret_is_reported(self):
        command = [sys.executable, "-m", "nearpath.dataflow", "serve", "json", "--secret", "nowhere"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no secret 'nowhere'", done.stderr)


class OpenFaasTests(WorkerServerCase):
    """The function's server with a double of OpenFaaS's gateway."""

    def place(self, seconds, upstream_timeout=60.0, **options):
        self.faas = OpenFaasDouble(self.server.server_port, {"mode": "http", "exec_timeout": seconds}, upstream_timeout)
        self.addCleanup(self.faas.stop)
        place = flow.Functions(self.faas.url, "workers", auth=("admin", "secret"), **options)
        self.addCleanup(place.close)
        return place

    def wait_ended(self, started):
        return started.wait(DEADLINE)

    def test_a_request_is_held_until_its_worker_ends(self):
        place = self.place("15m")
        self.assertEqual(place.limit, 900)
        self.assertEqual(self.wait_ended(place.start("map.0", orders("end"))), "")
        self.assertEqual(self.wait_ended(place.start("map.0", orders("fail"))), "exit code 1: it cannot be done")
        self.assertEqual(self.faas.routes, ["function", "function"])

    def test_a_gateway_timeout_is_reported(self):
        place = self.place("15m", upstream_timeout=0.5)
        self.assertRegex(self.wait_ended(place.start("map.0", orders("wait"))), "the connection broke after .* upstream_timeout")

    def test_long_requests_go_through_the_queue(self):
        place = self.place("15m", callback="http://127.0.0.1")
        self.assertEqual(self.wait_ended(place.start("map.0", orders("end"))), "")
        self.assertEqual(self.wait_ended(place.start("map.0", orders("fail"))), "exit code 1: it cannot be done")
        self.assertRegex(self.wait_ended(place.start("map.0", orders("end", module="os"))), "403: only jobs may be run")
        self.assertEqual(self.faas.routes, ["async-function"] * 3)

    def test_short_requests_bypass_the_queue(self):
        place = self.place("60s", callback="http://127.0.0.1")
        self.assertEqual(self.wait_ended(place.start("map.0", orders("end"))), "")
        self.assertEqual(self.faas.routes, ["function"])

    def test_a_queued_request_can_be_stopped(self):
        place = self.place("15m", callback="http://127.0.0.1")
        started = place.start("map.0", orders("wait"))
        self.assertIsNone(started.ended())
        started.stop()
        self.assertEqual(self.wait_ended(started), "stopped")

    def test_only_the_expected_callback_is_accepted_once(self):
        callbacks = Callbacks("http://127.0.0.1")
        self.addCleanup(callbacks.close)
        ends = []
        with callbacks.expected(ends.append) as url:
            foreign = url.rpartition("/")[0] + "/guess"
            with self.assertRaisesRegex(urllib.error.HTTPError, "404"):
                urllib.request.urlopen(foreign, b'{"ended": 0}')
            urllib.request.urlopen(url, b'{"alive": 1}\n{"ended": 0}\n').close()
            with self.assertRaisesRegex(urllib.error.HTTPError, "404"):
                urllib.request.urlopen(url, b'{"ended": 1}')  # a callback is accepted once
        self.assertEqual(ends, [""])

    def test_a_stopping_server_ends_its_workers(self):
        place = self.place("15m")
        started = place.start("map.0", orders("wait"))
        while not self.server.workers():
            time.sleep(0.01)
        self.server.stop()
        self.assertRegex(self.wait_ended(started), "^the instance is stopping; signal 15")
        self.assertEqual(self.server.workers(), 0)


if __name__ == "__main__":
    unittest.main()
