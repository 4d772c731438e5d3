"""Outside a domain, the native module and the standard library module behave alike."""

import http.client
import os
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock
import urllib.error
import urllib.request

from fixtures import DEADLINE, HERE, GatewayCase, RecordingGateway, free_port, run_in_child

import nearpath
from nearpath import _http


class HttpCases(GatewayCase):
    """Tests of both modules. `half` is the module."""

    half, make_gateway = None, RecordingGateway

    def setUp(self):
        self.gateway.requests.clear()

    def test_a_call_sends_its_options_and_returns_the_response(self):
        answer = self.half.call("price", b"one", method="PUT", path="/a?b=c", headers={"X-Tenant": "7"})
        self.assertEqual((answer.status, bytes(answer.body), answer.path), (200, b"answer to one", "http"))
        self.assertEqual(answer.headers["x-by"], "price")
        method, path, headers, body = self.gateway.requests[0]
        self.assertEqual((method, path, body), ("PUT", "/function/price/a?b=c", b"one"))
        self.assertEqual({name.lower(): value for name, value in headers.items()}["x-tenant"], "7")

    def test_each_kind_of_payload_is_sent(self):
        for payload in (b"xy", bytearray(b"xy"), memoryview(b"xy"), "xy", memoryview(b"-xy-")[1:3]):
            self.assertEqual(bytes(self.half.call("price", payload).body), b"answer to xy")
        self.assertEqual(bytes(self.half.call("price").body), b"answer to ")
        with self.assertRaises(TypeError):
            self.half.call("price", object())

    def test_a_body_is_a_read_only_view(self):
        body = self.half.call("price", b"x").body
        self.assertIsInstance(body, memoryview)
        self.assertTrue(body.readonly)

    def test_gather_returns_errors_and_notify_queues(self):
        answers = self.half.gather(("a", b"1"), ("refused", b""), ("b", b"2"), return_errors=True)
        self.assertEqual([bytes(answers[0].body), bytes(answers[2].body)], [b"answer to 1", b"answer to 2"])
        self.assertEqual(answers[1].kind, "platform")
        with self.assertRaises(self.half.Error):
            self.half.gather(("refused", b""))
        self.gateway.requests.clear()
        self.half.notify("mail", b"hello")
        self.assertEqual(self.gateway.requests[0][1::2], ("/async-function/mail", b"hello"))

    def test_errors_have_their_kind_path_and_reason(self):
        wanted = {
            "refused": ("platform", "http", False, 403, "not_allowed"),
            "dies": ("died", "http", False, None, None),
            "No Name": ("name", None, False, None, None),
        }
        for name, expected in wanted.items():
            with self.assertRaises(self.half.Error) as caught:
                self.half.call(name)
            error = caught.exception
            self.assertEqual((error.kind, error.path, error.retry_is_safe, error.status, error.reason), expected, error)
            self.assertEqual(error.function, name)
        with self.assertRaises(self.half.Error) as caught:
            self.half.call("far", shm_only=True)
        self.assertEqual((caught.exception.kind, caught.exception.retry_is_safe), ("unsent", True))

    def test_a_deadline_ends_a_call(self):
        with self.assertRaises(self.half.Error) as caught:
            self.half.call("slow", deadline=0.05)
        self.assertEqual(caught.exception.kind, "timeout")

    def test_an_idempotent_call_is_repeated_once(self):
        with self.assertRaises(self.half.Error):
            self.half.call("dies", idempotent=True)
        self.assertEqual(len(self.gateway.requests), 2)

    def test_a_forked_child_has_its_own_connections(self):
        def work():
            assert bytes(self.half.call("price", b"child", deadline=DEADLINE).body) == b"answer to child"

        for _ in range(2):
            self.half.call("price", b"parent")  # leaves an idle connection
            self.assertEqual(run_in_child(work), 0)
        self.assertEqual(bytes(self.half.call("price", b"parent").body), b"answer to parent")

    def test_threads_share_connections(self):
        self.half.call("price")
        before = self.gateway.connections()
        for _ in range(10):
            thread = threading.Thread(target=self.half.call, args=("price",))
            thread.start()
            thread.join(DEADLINE)
        self.assertLessEqual(self.gateway.connections() - before, 1)

    def test_a_served_handler_may_return_each_kind_of_response(self):
        port = free_port()
        environment = {**os.environ, "PORT": str(port), "NEARPATH_DISPATCH": ""}
        code = "import sys, nearpath; sys.modules['nearpath'] = sys.modules[sys.argv[1]]; exec(open(sys.argv[2]).read())"
        command = [sys.executable, "-c", f"import nearpath._http; {code}", self.half.__name__, str(HERE / "domain_functions.py")]
        process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            self.assertEqual(self.send(port, "/echo", b"body"), (200, b"body"))
            self.assertEqual(self.send(port, "/how", b"")[0], 203)
            self.assertEqual(self.send(port, "/shout", b"body"), (200, b"BODY"))
            with self.assertRaises((http.client.HTTPException, OSError)):
                self.send(port, "/broken", b"")  # truncated, never complete
            self.streams(port)
            self.assertEqual(self.send(port, "/pair", b""), (418, b"tea"))
            self.assertEqual(self.send(port, "/nothing", b""), (200, b""))
            self.assertEqual(self.send(port, "/raise", b""), (500, b"ValueError: it broke"))
        finally:
            process.terminate()
            ended = process.wait(DEADLINE)
        self.assertEqual(ended, 0)

    def streams(self, port):
        """Uses the function as its own gateway, because it reads the end of the path."""
        with unittest.mock.patch.dict(os.environ, {"NEARPATH_GATEWAY": f"http://127.0.0.1:{port}"}):
            # The native module reads the environment once per thread.
            thread = threading.Thread(target=self.stream)
            self.outcome = None
            thread.start()
            thread.join(DEADLINE)
        self.assertEqual(self.outcome, (b"ONETWO", "http", b"ONETWO"))

    def stream(self):
        with self.half.call("any", iter(["one", b"two"]), path="/shout", stream=True) as answer:
            parts = b"".join(bytes(part) for part in answer.stream)
        whole = self.half.call("any", (word for word in ("one", "two")), path="/shout")
        self.outcome = parts, answer.path, bytes(whole.body)

    def test_an_event_outside_a_domain_reaches_no_subscriber(self):
        self.assertEqual(self.half.publish("orders", b"new"), self.half.Published(0, 0))
        with self.assertRaises(self.half.Error) as caught:
            self.half.publish("orders/+")
        self.assertEqual((caught.exception.kind, caught.exception.function), ("name", ""))

    def send(self, port, path, body):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body, timeout=DEADLINE) as answer:
                    return answer.status, answer.read()
            except urllib.error.HTTPError as error:
                with error:
                    return error.code, error.read()
            except urllib.error.URLError:
                time.sleep(0.01)  # not listening yet
        self.fail("the server does not listen")


class NativeHttpTests(HttpCases, unittest.TestCase):
    half = nearpath


class StandardLibraryHttpTests(HttpCases, unittest.TestCase):
    half = _http


class NativeModuleTests(unittest.TestCase):
    def test_the_native_module_is_installed(self):
        self.assertEqual(nearpath.call.__module__, "nearpath._nearpath", "build it: make sdk-python")
