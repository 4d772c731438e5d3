"""Workers in functions: the function's server alone, and behind a stand-in for OpenFaaS's gateway."""

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

from cases import HERE, OwnTemp
from faas import Faas, orders
from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import function
from nearpath.dataflow._callbacks import Callbacks


@contextlib.contextmanager
def elsewhere(log):
    """What goes to standard error, workers' too, goes there."""
    before = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class Serving(OwnTemp):
    """The function's server."""

    def setUp(self):
        super().setUp()
        self.enterContext(elsewhere(self.enterContext(tempfile.TemporaryFile())))
        command = [sys.executable, str(HERE / "functions" / "act.py")]
        self.server = function.Server(["jobs"], port=0, workers=2, command=command, interval=0.1)
        serving = threading.Thread(target=self.server.serve_forever, daemon=True)
        serving.start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.stop)


class Served(Serving):
    def setUp(self):
        super().setUp()
        self.place = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    @contextlib.contextmanager
    def asked(self, body=b"", method="POST", **fields):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=DEADLINE)
        with contextlib.closing(connection):
            connection.request(method, "/", body, fields)
            yield connection.getresponse()

    def test_what_gets_no_worker(self):
        for status, body, fields in (
            (400, b"hello", {}),
            (403, orders("end", module="os"), {}),
            (413, bytes(65_537), {}),
        ):
            with self.asked(body, **fields) as answer:
                self.assertEqual(answer.status, status, answer.read())
        with socket.create_connection(self.server.server_address) as connection:
            connection.sendall(b"POST / HTTP/1.1\r\nHost: workers\r\n\r\n")
            self.assertTrue(connection.makefile("rb").readline().startswith(b"HTTP/1.1 411 "))
        self.assertEqual(self.server.workers(), 0)

    def test_it_is_ready_until_it_stops(self):
        with self.asked(method="GET") as answer:
            self.assertEqual(answer.status, 200)
        os.eventfd_write(self.server.stop_event, 1)
        with self.asked(method="GET") as answer:
            self.assertEqual(answer.status, 503)
        with self.asked(orders("end")) as answer:
            self.assertEqual((answer.status, answer.headers["Retry-After"]), (503, "1"))

    def test_no_more_than_its_limit(self):
        with self.asked(orders("wait")) as one, self.asked(orders("wait")) as other:
            self.assertEqual((one.status, other.status), (200, 200))
            with self.asked(orders("end")) as third:
                self.assertEqual((third.status, third.headers["Retry-After"]), (429, "1"))

    def test_signs_of_life(self):
        with self.asked(orders("wait")) as answer:
            ages = [json.loads(answer.readline())["alive"] for _ in range(3)]
        self.assertEqual(ages, sorted(ages))

    def test_who_goes_away_takes_all_that_the_worker_started(self):
        file = self.place / "left"
        with self.asked(orders("leave", file=str(file))):
            while not (file.exists() and file.read_text()):
                time.sleep(0.01)
            left = os.pidfd_open(int(file.read_text()))
        self.assertTrue(select.select([left], [], [], DEADLINE)[0])
        os.close(left)

    def test_what_a_worker_that_was_killed_has_left(self):
        with self.asked(orders("litter")) as answer:
            told = json.loads(answer.read().splitlines()[-1])
        how, _, folder = told["reason"].partition(": ")
        self.assertEqual((told["ended"], how), (-9, "signal 9"))
        self.assertIn("nearpath-worker-", folder)
        self.assertFalse(os.path.exists(folder))

    def test_errors_of_any_length(self):
        with self.asked(orders("chatter")) as answer:
            *_, last = answer.read().splitlines()
        self.assertEqual(json.loads(last), {"ended": 4, "reason": "exit code 4: line 99999"})

    def test_a_module_that_is_not_there(self):
        words = [sys.executable, "-m", "nearpath.dataflow", "serve", "nowhere"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no module 'nowhere'", done.stderr)

    def test_a_secret_that_is_not_there(self):
        words = [sys.executable, "-m", "nearpath.dataflow", "serve", "json", "--secret", "nowhere"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE)
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no secret 'nowhere'", done.stderr)


class OnOpenFaas(Serving):
    """Against a stand-in for its gateway; the function's server is real."""

    def place(self, seconds, upstream_timeout=60.0, **how):
        self.faas = Faas(self.server.server_port, {"mode": "http", "exec_timeout": seconds}, upstream_timeout)
        self.addCleanup(self.faas.stop)
        place = flow.Functions(self.faas.url, "workers", auth=("admin", "secret"), **how)
        self.addCleanup(place.close)
        return place

    def until_ended(self, started):
        return started.wait(DEADLINE)

    def test_a_request_is_held(self):
        place = self.place("15m")
        self.assertEqual(place.limit, 900)
        self.assertEqual(self.until_ended(place.start("map.0", orders("end"))), "")
        self.assertEqual(self.until_ended(place.start("map.0", orders("fail"))), "exit code 1: it cannot be done")
        self.assertEqual(self.faas.asked, ["function", "function"])

    def test_a_request_that_the_gateway_cuts(self):
        place = self.place("15m", upstream_timeout=0.5)
        self.assertRegex(self.until_ended(place.start("map.0", orders("wait"))), "cut after .* upstream_timeout")

    def test_long_ones_go_through_the_queue(self):
        place = self.place("15m", callback="http://127.0.0.1")
        self.assertEqual(self.until_ended(place.start("map.0", orders("end"))), "")
        self.assertEqual(self.until_ended(place.start("map.0", orders("fail"))), "exit code 1: it cannot be done")
        self.assertRegex(self.until_ended(place.start("map.0", orders("end", module="os"))), "403: only jobs may be run")
        self.assertEqual(self.faas.asked, ["async-function"] * 3)

    def test_short_ones_do_not(self):
        place = self.place("60s", callback="http://127.0.0.1")
        self.assertEqual(self.until_ended(place.start("map.0", orders("end"))), "")
        self.assertEqual(self.faas.asked, ["function"])

    def test_one_in_the_queue_is_given_up(self):
        place = self.place("15m", callback="http://127.0.0.1")
        started = place.start("map.0", orders("wait"))
        self.assertIsNone(started.ended())
        started.stop()
        self.assertEqual(self.until_ended(started), "stopped")

    def test_only_who_was_told_the_address_calls_back(self):
        callbacks = Callbacks("http://127.0.0.1")
        self.addCleanup(callbacks.close)
        told = []
        with callbacks.expected(told.append) as url:
            foreign = url.rpartition("/")[0] + "/guess"
            with self.assertRaisesRegex(urllib.error.HTTPError, "404"):
                urllib.request.urlopen(foreign, b'{"ended": 0}')
            urllib.request.urlopen(url, b'{"alive": 1}\n{"ended": 0}\n').close()
            with self.assertRaisesRegex(urllib.error.HTTPError, "404"):
                urllib.request.urlopen(url, b'{"ended": 1}')  # once is enough
        self.assertEqual(told, [""])

    def test_a_server_that_stops_ends_its_workers(self):
        place = self.place("15m")
        started = place.start("map.0", orders("wait"))
        while not self.server.workers():
            time.sleep(0.01)
        self.server.stop()
        self.assertRegex(self.until_ended(started), "^the instance is stopping; signal 15")
        self.assertEqual(self.server.workers(), 0)


if __name__ == "__main__":
    unittest.main()
