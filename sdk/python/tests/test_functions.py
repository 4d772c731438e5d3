"""Workers in functions: the place alone, on a real `nearpath up`."""

import contextlib
import io
import json
import math
import os
import unittest

from cases import Alarm
from faas import HTTP, orders
from up import Up

from nearpath import dataflow as flow
from nearpath.dataflow import _request, function
from nearpath.dataflow._callbacks import parse_end
from nearpath.dataflow._code import Code
from nearpath.dataflow._gateway import Function, limit


class Decisions(unittest.TestCase):
    def test_durations(self):
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

    def test_how_long_a_call_may_take(self):
        for expected, said in (
            (math.inf, Function(True, {"mode": "http"}, {"nearpath.io/total-timeout": "5s"})),
            (60, Function(True, {}, {})),
            (60, Function(True, {}, {"nearpath.io/total-timeout": "10m"})),  # until its first byte
            (90, Function(True, {}, {"nearpath.io/total-timeout": "90s", "nearpath.io/first-byte-timeout": "10m"})),
            (20, Function(True, {"exec_timeout": "20s"}, {})),
            (30, Function(False, {"mode": "http"}, {})),
            (900, Function(False, {"mode": "http", "exec_timeout": "15m"}, {})),
        ):
            self.assertEqual(said.max_seconds(), expected, said)

    def test_pauses_between_tries(self):
        self.assertLess(_request.next_delay(1, 0, 60), _request.next_delay(3, 0, 60))
        self.assertEqual(_request.next_delay(1, 7, 60), 7)
        self.assertEqual(_request.next_delay(900, 0, 60), _request.MAX_RETRY_DELAY)
        self.assertIsNone(_request.next_delay(1, 7, 6))

    def test_the_line_that_says_the_end(self):
        self.assertIsNone(parse_end(b'{"alive": 5.0}\n'))
        self.assertIsNone(parse_end(b"[1]\n"))
        self.assertIsNone(parse_end(b"no json"))
        self.assertEqual(parse_end(b'{"ended": 0, "reason": "exit code 0"}'), "")
        self.assertEqual(parse_end(b'{"ended": 3, "reason": "exit code 3: gone"}'), "exit code 3: gone")

    def test_orders_that_get_no_worker(self):
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

    def test_orders_call_nothing_that_a_module_has_imported(self):
        with self.assertRaisesRegex(ImportError, "textwrap.re is not defined in textwrap"):
            Code("textwrap", "re").call()
        with self.assertRaisesRegex(ImportError, "subprocess._fork_exec is not defined in subprocess"):
            Code("subprocess", "_fork_exec").call()

    def test_the_machine_of_an_instance_is_another_loopback(self):
        def place(there, machine="host.nearpath.internal"):
            told = json.loads(orders("end", rendezvous={"place": there, "ticket": "t"}))
            return json.loads(function.with_local_rendezvous(told, machine))["rendezvous"]["place"]

        self.assertEqual(place("ws://127.0.0.1:7843"), "ws://host.nearpath.internal:7843")
        self.assertEqual(place("ws://localhost:7843"), "ws://host.nearpath.internal:7843")
        for there in ("wss://127.0.0.1:7843", "ws://10.0.0.1:7843", "wss://meet.example.com"):
            self.assertEqual(place(there), there)
        self.assertEqual(place("ws://127.0.0.1:7843", None), "ws://127.0.0.1:7843")
        self.assertEqual(json.loads(function.with_local_rendezvous(json.loads(orders("end")), "m")), json.loads(orders("end")))


class OnNearpath(Alarm):
    @classmethod
    def setUpClass(cls):
        cls.up = Up()
        cls.addClassCleanup(cls.up.stop)
        cls.handler = cls.up.handler()
        cls.up.deploy("workers", cls.handler, "python3 serve.py", envVars=HTTP)

    def place(self, name="workers", **how):
        place = flow.Functions(self.up.url, name, auth=("admin", self.up.password), **how)
        self.addCleanup(place.close)
        return place

    def until_ended(self, started):
        return self.up.until(lambda: (how := started.ended()) is not None and (how,), "the worker has ended")[0]

    def until_logged(self, text, name="workers"):
        self.up.until(lambda: text in self.up.logs(name), f"{text!r} in its log: {self.up.logs(name)}")

    def running(self, do, worker, place=None):
        """A worker that runs: its log says so."""
        started = (place or self.place()).start(worker, orders(do, worker=worker))
        self.until_logged(f"about to {do}")
        return started

    def test_a_worker_that_ends_well(self):
        place = self.place()
        self.assertEqual(place.limit, math.inf)
        self.assertEqual(self.until_ended(place.start("map.0", orders("end"))), "")

    def test_a_worker_that_fails_says_why(self):
        self.assertEqual(self.until_ended(self.place().start("map.0", orders("fail"))), "exit code 1: it cannot be done")

    def test_orders_that_are_refused_are_not_sent_again(self):
        how = self.until_ended(self.place().start("map.0", orders("end", module="os")))
        self.assertRegex(how, "403.*only jobs may be run here, not 'os'")

    def test_who_is_told_to_stop_is_ended(self):
        started = self.running("wait", "stopped.0")
        self.assertIsNone(started.ended())
        started.stop()
        self.assertEqual(self.until_ended(started), "stopped")
        self.until_logged("stopped.0 of sort-1: the caller has gone; signal 15")

    def test_a_closed_place_leaves_nobody(self):
        place = self.place()
        self.running("wait", "closed.0", place)
        place.close()
        self.until_logged("closed.0 of sort-1: the caller has gone; signal 15")

    def test_more_than_there_is_room_for(self):
        place = self.place()
        first, second = (place.start(f"room.{number}", orders("wait", worker=f"room.{number}")) for number in range(2))
        hasty = self.place(patience=0.5)
        self.up.until(lambda: "429" in (self.until_ended(hasty.start("room.2", orders("end"))) or ""), "both are there")
        patient = place.start("room.3", orders("end"))
        self.up.until(lambda: "429" in self.until_ended(hasty.start("room.4", orders("end"))), "still no room")
        self.assertIsNone(patient.ended())
        first.stop()
        self.assertEqual(self.until_ended(patient), "")
        second.stop()

    def test_a_function_that_sleeps_is_woken(self):
        self.up.scale("workers", 0)
        self.assertEqual(self.until_ended(self.place().start("map.0", orders("end"))), "")
        self.up.scale("workers", 1)

    def test_an_instance_that_dies(self):
        self.up.deploy("mortal", self.handler, "python3 serve.py", envVars=HTTP)
        how = self.until_ended(self.place("mortal").start("map.0", orders("kill")))
        self.assertRegex(how, "cut after")

    def test_an_instance_that_is_taken_away(self):
        self.up.deploy("taken", self.handler, "python3 serve.py", envVars={**HTTP, "write_timeout": "1s"})
        started = self.place("taken").start("map.0", orders("wait"))
        self.until_logged("about to wait", "taken")
        self.assertEqual(self.up.ask("DELETE", "/system/functions", {"functionName": "taken"})[0], 200)
        self.assertNotEqual(self.until_ended(started), "")

    def test_a_process_that_reads_its_orders(self):
        self.up.deploy("classic", self.handler, "python3 act.py", annotations={"nearpath.io/total-timeout": "50s"})
        place = self.place("classic")
        self.assertEqual(place.limit, 50)
        self.assertEqual(self.until_ended(place.start("map.0", orders("end"))), "")
        self.assertRegex(self.until_ended(place.start("map.0", orders("fail"))), "500")

    def test_a_secret(self):
        secret = {"name": "workers-key", "value": "open sesame"}
        self.assertIn(self.up.ask("POST", "/system/secrets", secret)[0], (200, 201, 202))
        self.up.deploy("secretive", self.handler, "python3 serve.py workers-key", envVars=HTTP, secrets=["workers-key"])
        self.assertRegex(self.until_ended(self.place("secretive").start("map.0", orders("end"))), "401.*secret")
        self.assertEqual(self.until_ended(self.place("secretive", secret="open sesame").start("map.0", orders("end"))), "")

    def test_a_function_that_is_not_there(self):
        with self.assertRaisesRegex(LookupError, "there is no function 'none'"):
            self.place("none")

    def test_a_gateway_that_is_not_there(self):
        with self.assertRaisesRegex(ConnectionError, "no gateway answers at http://127.0.0.1:1: .*nearpath up"):
            flow.Functions("http://127.0.0.1:1", "workers")

    def test_the_password_that_nearpath_up_made(self):
        os.environ["NEARPATH_DATA_DIR"] = str(self.up.data)
        self.addCleanup(os.environ.pop, "NEARPATH_DATA_DIR")
        self.assertTrue(flow.Functions(self.up.url, "workers").is_nearpath)

    def test_without_a_password_it_says_what_is_missing(self):
        os.environ["NEARPATH_DATA_DIR"] = "/nonexistent"
        self.addCleanup(os.environ.pop, "NEARPATH_DATA_DIR")
        with contextlib.redirect_stderr(io.StringIO()) as said:
            place = flow.Functions(self.up.url, "workers")
        self.assertIn("does not say how long 'workers' may run", said.getvalue())
        self.assertEqual(self.until_ended(place.start("map.0", orders("end"))), "")


if __name__ == "__main__":
    unittest.main()
