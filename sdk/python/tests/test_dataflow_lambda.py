"""Workers on Lambda: the place, on a test double with AWS's own clients on both sides."""

import os
import signal
import socket
import threading
import unittest

from lambda_fixture import HoldServer, LambdaCase, orders, wait_until, zipped


FUNCTIONS = """
import os, socket, sys

def succeed(event, context):
    return {"worker": event["worker"], "ended": ""}

def fail(event, context):
    print("the last line of", event["worker"])
    return {"worker": event["worker"], "ended": "it failed"}

def raises(event, context):
    raise LookupError("no such key")

def held(event, context):
    with socket.create_connection(("127.0.0.1", event["port"])) as connection:
        connection.sendall(b"here")
        connection.recv(2)
    return {"worker": event["worker"], "ended": ""}

def other(event, context):
    return "hello"
"""


class LambdaPlaceTests(LambdaCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = zipped(cls.folder, functions=FUNCTIONS)
        for name in ("succeed", "fail", "raises", "other"):
            cls.lambdas.create(name, path, f"functions.{name}")
        cls.lambdas.create("brief", path, "functions.held", timeout=1)
        cls.lambdas.create("held", path, "functions.held")
        cls.lambdas.create("alone", path, "functions.held", concurrency=1)
        cls.lambdas.create("never", path, "functions.succeed", concurrency=0)

    def setUp(self):
        super().setUp()
        self.hold_server = HoldServer()
        self.addCleanup(self.hold_server.socket.close)

    def test_limit_and_memory_come_from_the_function(self):
        place = self.place("held")
        self.assertEqual((place.limit, place.memory, place.name), (30.0, 0.125, "lambda"))
        place = self.place("held", limit=7, memory=2)
        self.assertEqual((place.limit, place.memory), (7, 2))

    def test_a_missing_function_is_reported(self):
        with self.assertRaisesRegex(LookupError, "Function not found: .*:missing"):
            self.place("missing")

    def test_a_successful_worker_has_an_empty_end(self):
        self.assertEqual(self.wait_ended(self.place("succeed").start("map.0", orders())), "")

    def test_a_failed_workers_end_includes_its_log(self):
        ended = self.wait_ended(self.place("fail").start("map.0", orders()))
        self.assertEqual(ended, "it failed\n  | the last line of map.0")

    def test_an_exception_is_reported(self):
        ended = self.wait_ended(self.place("raises").start("map.0", orders()))
        self.assertRegex(ended, "the function ended with LookupError: no such key\n  | .*raises")

    def test_another_handler_is_reported(self):
        self.assertIn("its handler must be nearpath.dataflow.aws.handler", self.wait_ended(self.place("other").start("map.0", orders())))

    def test_a_worker_runs_until_it_has_ended(self):
        started = self.place("held").start("map.0", orders(port=self.hold_server.port))
        connection = self.hold_server.accept()
        self.assertIsNone(started.ended())
        started.stop()  # a stop does not end an invocation
        self.assertIsNone(started.ended())
        self.hold_server.release(connection)
        self.assertEqual(self.wait_ended(started), "")

    def test_a_timeout_of_the_function_is_reported(self):
        started = self.place("brief").start("map.0", orders(port=self.hold_server.port))
        with self.hold_server.accept():
            self.assertRegex(self.wait_ended(started), r"Sandbox.Timedout: .*Task timed out after 1.00 seconds")

    def test_a_killed_environment_is_reported(self):
        started = self.place("held").start("map.0", orders(port=self.hold_server.port))
        with self.hold_server.accept():
            (busy,) = (environment for environment in self.lambdas.environments("held") if environment["busy"])
            os.kill(busy["pid"], signal.SIGKILL)
            self.assertIn("Runtime.ExitError", self.wait_ended(started))

    def test_a_throttled_start_is_retried_and_logged(self):
        place = self.place("alone")
        first = place.start("map.0", orders(port=self.hold_server.port))
        connection = self.hold_server.accept()
        with self.assertLogs("nearpath.dataflow", "WARNING") as logs:
            second = place.start("map.1", orders(port=self.hold_server.port))
            wait_until(lambda: logs.output)
            self.assertIsNone(second.ended())
            self.hold_server.release(connection)
            self.hold_server.release(self.hold_server.accept())
            self.assertEqual((self.wait_ended(first), self.wait_ended(second)), ("", ""))
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(
            logs.output[0], "ReservedFunctionConcurrentInvocationLimitExceeded.*raise the limit, or use fewer workers"
        )

    def test_a_throttled_start_fails_after_its_timeout(self):
        with self.assertLogs("nearpath.dataflow", "WARNING"):
            ended = self.wait_ended(self.place("never", start_timeout=0.3).start("map.0", orders()))
        self.assertRegex(ended, r"Lambda refused the start [2-9] times in 0 s: TooManyRequestsException: Rate Exceeded")

    def test_a_waiting_start_can_be_stopped(self):
        with self.assertLogs("nearpath.dataflow", "WARNING") as logs:
            started = self.place("never").start("map.0", orders())
            wait_until(lambda: logs.output)
            started.stop()
            self.assertEqual(self.wait_ended(started), "")

    def test_closing_ends_waiting_starts(self):
        place = self.place("never")
        with self.assertLogs("nearpath.dataflow", "WARNING"):
            started = place.start("map.0", orders())
            place.close()
        self.assertEqual(started.ended(), "")

    def test_a_broken_connection_does_not_end_the_worker(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            cut = threading.Thread(target=disconnect, args=(server,))
            cut.start()
            place = self.place("held", endpoint=f"http://127.0.0.1:{server.getsockname()[1]}", limit=900, memory=1)
            started = place.start("map.0", orders())
            cut.join()
            self.assertIsNone(started.ended())
            started.stop()
            self.assertIn("unknown end: ", self.wait_ended(started))

    def test_a_custom_client_is_used(self):
        client = self.lambdas.client()
        self.addCleanup(client.close)
        self.assertEqual(self.wait_ended(self.place("succeed", client=client).start("map.0", orders())), "")

    def test_a_client_with_retries_or_a_short_timeout_is_refused(self):
        for settings, why in ({"retries": {"max_attempts": 3}}, "start workers twice"), (
            {"read_timeout": 5},
            "times out after 5 s",
        ):
            client = self.lambdas.client(**settings)
            self.addCleanup(client.close)
            with self.assertRaisesRegex(ValueError, why):
                self.place("held", client=client)


def disconnect(server):
    """Reads a request and disconnects."""
    connection, _ = server.accept()
    with connection:
        while b"\r\n\r\n" not in connection.recv(1 << 16):
            pass


class LambdaPlaceWithoutPermissionTests(LambdaCase):
    arguments = ("--deny", "GetFunctionConfiguration")

    def test_the_limit_is_required_without_permission_to_read_it(self):
        path = zipped(self.folder, functions=FUNCTIONS)
        self.lambdas.create("succeed", path, "functions.succeed")
        with self.assertRaisesRegex(PermissionError, "Allow lambda:GetFunctionConfiguration, or pass limit="):
            self.place("succeed")
        place = self.place("succeed", limit=30)
        self.assertEqual((place.limit, place.memory), (30, None))
        self.assertEqual(self.wait_ended(place.start("map.0", orders())), "")


class RetryTests(unittest.TestCase):
    """Decisions without sockets and clocks."""

    def test_retry_delays_grow_and_end(self):
        from nearpath.dataflow.aws import _calls

        delays = _calls.RetryDelays(20)
        values = list(iter(lambda: delays.next(jitter=1), None))
        self.assertEqual(values, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
        self.assertEqual(_calls.RetryDelays(20).next(jitter=0), 0.1)
        self.assertEqual(_calls.RetryDelays(20).next(retry_after="7", jitter=0), 7)
        self.assertIsNone(_calls.RetryDelays(20).next(retry_after="21"))

    def test_only_refused_starts_are_retried(self):
        from nearpath.dataflow.aws import _calls

        def is_retryable(code):
            return _calls.Refused.read({"Error": {"Code": code, "Message": ""}}).is_retryable

        self.assertTrue(is_retryable("TooManyRequestsException") and is_retryable("ResourceNotReadyException"))
        self.assertFalse(is_retryable("ServiceException") or is_retryable("AccessDeniedException") or is_retryable("ResourceNotFoundException"))


if __name__ == "__main__":
    unittest.main()
