"""Workers on Lambda: the place, on a stand-in with AWS's own clients on both sides."""

import os
import signal
import socket
import threading
import unittest

from lambdas import DispatchSocket, OnLambda, orders, until, zipped


FUNCTIONS = """
import os, socket, sys

def well(event, context):
    return {"worker": event["worker"], "ended": ""}

def ill(event, context):
    print("the last word of", event["worker"])
    return {"worker": event["worker"], "ended": "it failed"}

def raises(event, context):
    raise LookupError("no such shelf")

def held(event, context):
    with socket.create_connection(("127.0.0.1", event["door"])) as line:
        line.sendall(b"here")
        line.recv(2)
    return {"worker": event["worker"], "ended": ""}

def other(event, context):
    return "hello"
"""


class ThePlace(OnLambda):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = zipped(cls.folder, functions=FUNCTIONS)
        for name in ("well", "ill", "raises", "other"):
            cls.lambdas.create(name, path, f"functions.{name}")
        cls.lambdas.create("brief", path, "functions.held", timeout=1)
        cls.lambdas.create("held", path, "functions.held")
        cls.lambdas.create("alone", path, "functions.held", concurrency=1)
        cls.lambdas.create("never", path, "functions.well", concurrency=0)

    def setUp(self):
        super().setUp()
        self.dispatch_socket = DispatchSocket()
        self.addCleanup(self.dispatch_socket.socket.close)

    def test_limit_and_memory_are_the_functions(self):
        place = self.place("held")
        self.assertEqual((place.limit, place.memory, place.name), (30.0, 0.125, "lambda"))
        place = self.place("held", limit=7, memory=2)
        self.assertEqual((place.limit, place.memory), (7, 2))

    def test_there_is_no_such_function(self):
        with self.assertRaisesRegex(LookupError, "Function not found: .*:nobody"):
            self.place("nobody")

    def test_a_worker_ends_well(self):
        self.assertEqual(self.end(self.place("well").start("map.0", orders())), "")

    def test_how_a_worker_ended_has_the_end_of_its_log(self):
        ended = self.end(self.place("ill").start("map.0", orders()))
        self.assertEqual(ended, "it failed\n  | the last word of map.0")

    def test_an_exception_is_told(self):
        ended = self.end(self.place("raises").start("map.0", orders()))
        self.assertRegex(ended, "the function ended with LookupError: no such shelf\n  | .*raises")

    def test_a_handler_of_something_else_is_told(self):
        self.assertIn("its handler must be nearpath.dataflow.aws.handler", self.end(self.place("other").start("map.0", orders())))

    def test_a_worker_runs_until_it_has_ended(self):
        started = self.place("held").start("map.0", orders(door=self.dispatch_socket.port))
        line = self.dispatch_socket.come()
        self.assertIsNone(started.ended())
        started.stop()  # it does not end an invocation
        self.assertIsNone(started.ended())
        self.dispatch_socket.go(line)
        self.assertEqual(self.end(started), "")

    def test_a_function_whose_time_is_up_is_told(self):
        started = self.place("brief").start("map.0", orders(door=self.dispatch_socket.port))
        with self.dispatch_socket.come():
            self.assertRegex(self.end(started), r"Sandbox.Timedout: .*Task timed out after 1.00 seconds")

    def test_an_environment_that_dies_is_told(self):
        started = self.place("held").start("map.0", orders(door=self.dispatch_socket.port))
        with self.dispatch_socket.come():
            (busy,) = (environment for environment in self.lambdas.environments("held") if environment["busy"])
            os.kill(busy["pid"], signal.SIGKILL)
            self.assertIn("Runtime.ExitError", self.end(started))

    def test_a_start_that_is_refused_for_now_is_tried_again_and_said(self):
        place = self.place("alone")
        first = place.start("map.0", orders(door=self.dispatch_socket.port))
        line = self.dispatch_socket.come()
        with self.assertLogs("nearpath.dataflow", "WARNING") as said:
            second = place.start("map.1", orders(door=self.dispatch_socket.port))
            until(lambda: said.output)
            self.assertIsNone(second.ended())
            self.dispatch_socket.go(line)
            self.dispatch_socket.go(self.dispatch_socket.come())
            self.assertEqual((self.end(first), self.end(second)), ("", ""))
        self.assertEqual(len(said.output), 1)
        self.assertRegex(
            said.output[0], "ReservedFunctionConcurrentInvocationLimitExceeded.*have the limit raised, or use fewer workers"
        )

    def test_a_start_is_not_tried_for_ever(self):
        with self.assertLogs("nearpath.dataflow", "WARNING"):
            ended = self.end(self.place("never", patience=0.3).start("map.0", orders()))
        self.assertRegex(ended, r"Lambda refused the start [2-9] times in 0 s: TooManyRequestsException: Rate Exceeded")

    def test_a_start_that_waits_can_be_stopped(self):
        with self.assertLogs("nearpath.dataflow", "WARNING") as said:
            started = self.place("never").start("map.0", orders())
            until(lambda: said.output)
            started.stop()
            self.assertEqual(self.end(started), "")

    def test_closing_ends_starts_that_wait(self):
        place = self.place("never")
        with self.assertLogs("nearpath.dataflow", "WARNING"):
            started = place.start("map.0", orders())
            place.close()
        self.assertEqual(started.ended(), "")

    def test_who_hears_nothing_more_does_not_call_the_worker_ended(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            cut = threading.Thread(target=cut_off, args=(server,))
            cut.start()
            place = self.place("held", endpoint=f"http://127.0.0.1:{server.getsockname()[1]}", limit=900, memory=1)
            started = place.start("map.0", orders())
            cut.join()
            self.assertIsNone(started.ended())
            started.stop()
            self.assertIn("unknown end: ", self.end(started))

    def test_a_client_of_the_users(self):
        client = self.lambdas.client()
        self.addCleanup(client.close)
        self.assertEqual(self.end(self.place("well", client=client).start("map.0", orders())), "")

    def test_a_client_that_tries_again_or_hangs_up_is_refused(self):
        for settings, why in ({"retries": {"max_attempts": 3}}, "starts workers twice"), (
            {"read_timeout": 5},
            "hangs up after 5 s",
        ):
            client = self.lambdas.client(**settings)
            self.addCleanup(client.close)
            with self.assertRaisesRegex(ValueError, why):
                self.place("held", client=client)


def cut_off(server):
    """Reads a request, and hangs up."""
    line, _ = server.accept()
    with line:
        while b"\r\n\r\n" not in line.recv(1 << 16):
            pass


class ThePlaceWithoutLeave(OnLambda):
    arguments = ("--deny", "GetFunctionConfiguration")

    def test_the_limit_must_be_said_where_it_cannot_be_read(self):
        path = zipped(self.folder, functions=FUNCTIONS)
        self.lambdas.create("well", path, "functions.well")
        with self.assertRaisesRegex(PermissionError, "Allow lambda:GetFunctionConfiguration, or say limit="):
            self.place("well")
        place = self.place("well", limit=30)
        self.assertEqual((place.limit, place.memory), (30, None))
        self.assertEqual(self.end(place.start("map.0", orders())), "")


class Decisions(unittest.TestCase):
    """What needs no socket and no clock."""

    def test_waits_grow_and_end(self):
        from nearpath.dataflow.aws import _calls

        waits = _calls.RetryDelays(20)
        made = list(iter(lambda: waits.next(jitter=1), None))
        self.assertEqual(made, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
        self.assertEqual(_calls.RetryDelays(20).next(jitter=0), 0.1)
        self.assertEqual(_calls.RetryDelays(20).next(retry_after="7", jitter=0), 7)
        self.assertIsNone(_calls.RetryDelays(20).next(retry_after="21"))

    def test_only_what_was_not_started_is_asked_for_again(self):
        from nearpath.dataflow.aws import _calls

        def later(code):
            return _calls.Refused.read({"Error": {"Code": code, "Message": ""}}).is_retryable

        self.assertTrue(later("TooManyRequestsException") and later("ResourceNotReadyException"))
        self.assertFalse(later("ServiceException") or later("AccessDeniedException") or later("ResourceNotFoundException"))


if __name__ == "__main__":
    unittest.main()
