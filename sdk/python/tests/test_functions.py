"""Workers in functions: the place, on a real `nearpath up`."""

import contextlib
import io
import json
import math
import os
import unittest

from cases import DeadlineCase
from openfaas_double import HTTP, orders
from nearpath_up import NearpathUp

from nearpath import dataflow as flow
from nearpath.dataflow import _request, function
from nearpath.dataflow._callbacks import parse_end
from nearpath.dataflow._code import Code
from nearpath.dataflow._gateway import Function, limit


class FunctionDecisionTests(unittest.TestCase):
    def test_durations_are_parsed(self):
        for text, seconds in (
            ("30", 30),
            ("1m30s", 90),
            ("250ms", 0.25),
            ("2h", 7200),
            ("0", math.inf),
            ("0s", math.inf),
            ("no", math.inf),
        ):
            self.assertEqual(limit(text), seconds, text)

    def test_the_time_limit_of_a_call_follows_from_the_description(self):
        for expected, description in (
            (math.inf, Function(True, {"mode": "http"}, {"nearpath.io/total-timeout": "5s"})),
            (60, Function(True, {}, {})),
            (60, Function(True, {}, {"nearpath.io/total-timeout": "10m"})),  # limited by the first-byte timeout
            (90, Function(True, {}, {"nearpath.io/total-timeout": "90s", "nearpath.io/first-byte-timeout": "10m"})),
            (20, Function(True, {"exec_timeout": "20s"}, {})),
            (30, Function(False, {"mode": "http"}, {})),
            (900, Function(False, {"mode": "http", "exec_timeout": "15m"}, {})),
        ):
            self.assertEqual(description.max_seconds(), expected, description)

    def test_retry_delays_grow_to_their_maximum(self):
        self.assertLess(_request.next_delay(1, 0, 60), _request.next_delay(3, 0, 60))
        self.assertEqual(_request.next_delay(1, 7, 60), 7)
        self.assertEqual(_request.next_delay(900, 0, 60), _request.MAX_RETRY_DELAY)
        self.assertIsNone(_request.next_delay(1, 7, 6))

    def test_the_end_is_parsed_from_its_line(self):
        self.assertIsNone(parse_end(b'{"alive": 5.0}\n'))
        self.assertIsNone(parse_end(b"[1]\n"))
        self.assertIsNone(parse_end(b"no json"))
        self.assertEqual(parse_end(b'{"ended": 0, "reason": "exit code 0"}'), "")
        self.assertEqual(parse_end(b'{"ended": 3, "reason": "exit code 3: gone"}'), "exit code 3: gone")

    def test_invalid_orders_are_refused(self):
        for status, text in (
            (400, b"["),
            (400, b"[" * 100_000),
            (400, b"{}"),
            (400, orders("end", version=2)),
            (403, orders("end", module="os")),
            (400, orders("end", code={"module": "jobs", "name": "os.system"})),
        ):
            with self.assertRaises(function.Refused) as refused:
                function.check(text, ["jobs"])
            self.assertEqual(refused.exception.status, status, text[:80])
        self.assertEqual(function.check(orders("end"), ["jobs"])["worker"], "map.0")

    def test_orders_cannot_call_a_modules_imports(self):
        with self.assertRaisesRegex(ImportError, "textwrap.re is not defined in textwrap"):
            Code("textwrap", "re").call()
        with self.assertRaisesRegex(ImportError, "subprocess._fork_exec is not defined in subprocess"):
            Code("subprocess", "_fork_exec").call()

    def test_a_loopback_rendezvous_is_replaced_by_the_host_machine(self):
        def place(there, machine="host.nearpath.internal"):
            fields = json.loads(orders("end", rendezvous={"place": there, "ticket": "t"}))
            return json.loads(function.with_local_rendezvous(fields, machine))["rendezvous"]["place"]

        self.assertEqual(place("ws://127.0.0.1:7843"), "ws://host.nearpath.internal:7843")
        self.assertEqual(place("ws://localhost:7843"), "ws://host.nearpath.internal:7843")
        for there in ("wss://127.0.0.1:7843", "ws://10.0.0.1:7843", "wss://meet.example.com"):
            self.assertEqual(place(there), there)
        self.assertEqual(place("ws://127.0.0.1:7843", None), "ws://127.0.0.1:7843")
        self.assertEqual(json.loads(function.with_local_rendezvous(json.loads(orders("end")), "m")), json.loads(orders("end")))


class NearpathFunctionTests(DeadlineCase):
    @classmethod
    def setUpClass(cls):
        cls.up = NearpathUp()
        cls.addClassCleanup(cls.up.stop)
        cls.handler = cls.up.handler()
        cls.up.deploy("workers", cls.handler, "python3 serve.py", envVars=HTTP)

    def place(self, name="workers", **options):
        place = flow.Functions(self.up.url, name, auth=("admin", self.up.password), **options)
        self.addCleanup(place.close)
        return place

    def wait_ended(self, started):
        return self.up.wait_until(lambda: (end := started.ended()) is not None and (end,), "the worker has ended")[0]

    def wait_logged(self, text, name="workers"):
        self.up.wait_until(lambda: text in self.up.logs(name), f"{text!r} in its log: {self.up.logs(name)}")

    def running(self, do, worker, place=None):
        """Starts a worker of this name, which no other has, and waits for its first log line."""
        started = (place or self.place()).start(worker, orders(do, worker=worker))
        self.wait_logged(f"{worker} is about to {do}")
        return started

    def test_a_successful_worker_has_an_empty_end(self):
        place = self.place()
        self.assertEqual(place.limit, math.inf)
        self.assertEqual(self.wait_ended(place.start("map.0", orders("end"))), "")

    def test_a_failed_worker_reports_its_cause(self):
        self.assertEqual(self.wait_ended(self.place().start("map.0", orders("fail"))), "exit code 1: it cannot be done")

    def test_refused_orders_are_not_retried(self):
        end = self.wait_ended(self.place().start("map.0", orders("end", module="os")))
        self.assertRegex(end, "403.*only jobs may be run here, not 'os'")

    def test_a_stopped_worker_is_ended(self):
        started = self.running("wait", "stopped.0")
        self.assertIsNone(started.ended())
        started.stop()
        self.assertEqual(self.wait_ended(started), "stopped")
        self.wait_logged("stopped.0 of sort-1: the caller has disconnected; signal 15")

    def test_closing_a_place_ends_its_workers(self):
        place = self.place()
        self.running("wait", "closed.0", place)
        place.close()
        self.wait_logged("closed.0 of sort-1: the caller has disconnected; signal 15")

    def test_a_start_without_capacity_is_retried(self):
        place = self.place()
        first, second = (place.start(f"room.{number}", orders("wait", worker=f"room.{number}")) for number in range(2))
        impatient_place = self.place(start_timeout=0.5)
        self.up.wait_until(lambda: "429" in (self.wait_ended(impatient_place.start("room.2", orders("end"))) or ""), "both workers run")
        retrying = place.start("room.3", orders("end"))
        self.up.wait_until(lambda: "429" in self.wait_ended(impatient_place.start("room.4", orders("end"))), "no capacity yet")
        self.assertIsNone(retrying.ended())
        first.stop()
        self.assertEqual(self.wait_ended(retrying), "")
        second.stop()

    def test_a_function_scaled_to_zero_is_woken(self):
        self.up.scale("workers", 0)
        self.assertEqual(self.wait_ended(self.place().start("map.0", orders("end"))), "")
        self.up.scale("workers", 1)

    def test_the_death_of_an_instance_is_reported(self):
        self.up.deploy("exiting", self.handler, "python3 serve.py", envVars=HTTP)
        end = self.wait_ended(self.place("exiting").start("map.0", orders("kill")))
        self.assertRegex(end, "the connection broke after")

    def test_the_removal_of_a_function_is_reported(self):
        self.up.deploy("taken", self.handler, "python3 serve.py", envVars={**HTTP, "write_timeout": "1s"})
        started = self.place("taken").start("map.0", orders("wait"))
        self.wait_logged("about to wait", "taken")
        self.assertEqual(self.up.send("DELETE", "/system/functions", {"functionName": "taken"})[0], 200)
        self.assertNotEqual(self.wait_ended(started), "")

    def test_a_process_per_request_runs_a_worker(self):
        self.up.deploy("classic", self.handler, "python3 scripted_worker.py", annotations={"nearpath.io/total-timeout": "50s"})
        place = self.place("classic")
        self.assertEqual(place.limit, 50)
        self.assertEqual(self.wait_ended(place.start("map.0", orders("end"))), "")
        self.assertRegex(self.wait_ended(place.start("map.0", orders("fail"))), "500")

    def test_a_function_with_a_secret_refuses_other_callers(self):
        secret = {"name": "workers-key", "value": "open sesame"}
        self.assertIn(self.up.send("POST", "/system/secrets", secret)[0], (200, 201, 202))
        self.up.deploy("secretive", self.handler, "python3 serve.py workers-key", envVars=HTTP, secrets=["workers-key"])
        self.assertRegex(self.wait_ended(self.place("secretive").start("map.0", orders("end"))), "401.*secret")
        self.assertEqual(self.wait_ended(self.place("secretive", secret="open sesame").start("map.0", orders("end"))), "")

    def test_a_missing_function_is_reported(self):
        with self.assertRaisesRegex(LookupError, "there is no function 'none'"):
            self.place("none")

    def test_a_missing_gateway_is_reported(self):
        with self.assertRaisesRegex(ConnectionError, "no gateway answers at http://127.0.0.1:1: .*nearpath up"):
            flow.Functions("http://127.0.0.1:1", "workers")

    def test_the_password_of_nearpath_up_is_found(self):
        os.environ["NEARPATH_DATA_DIR"] = str(self.up.data)
        self.addCleanup(os.environ.pop, "NEARPATH_DATA_DIR")
        self.assertTrue(flow.Functions(self.up.url, "workers").is_nearpath)

    def test_a_missing_password_is_reported(self):
        os.environ["NEARPATH_DATA_DIR"] = "/nonexistent"
        self.addCleanup(os.environ.pop, "NEARPATH_DATA_DIR")
        with contextlib.redirect_stderr(io.StringIO()) as output:
            place = flow.Functions(self.up.url, "workers")
        self.assertIn("does not describe the time limit of 'workers'", output.getvalue())
        self.assertEqual(self.wait_ended(place.start("map.0", orders("end"))), "")


if __name__ == "__main__":
    unittest.main()
