"""Streamed bodies, topics, threads and signals in a domain, each function in its own process."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest

from fixtures import DEADLINE, HERE, Domain

import nearpath


class StreamTests(unittest.TestCase):
    """This process is the function `caller`, for all tests."""

    @classmethod
    def setUpClass(cls):
        edges = ["caller>parts", "caller>callee", "parts>callee", "caller>threads", "caller>listens-orders", "other>callee"]
        cls.domain = Domain(*edges)
        os.environ["NEARPATH_DISPATCH"] = cls.domain.dispatch_socket("caller")
        cls.domain.start("parts", STREAM="1")
        cls.domain.start("callee", STREAM="1", THREADS="2")
        cls.domain.start("threads", THREADS="4")
        cls.domain.start("listens-orders")
        for name in ("parts", "callee", "threads", "listens-orders"):
            cls.wait_reachable(name)

    @classmethod
    def tearDownClass(cls):
        del os.environ["NEARPATH_DISPATCH"]
        codes = cls.domain.stop()
        assert set(codes) == {0}, codes

    @staticmethod
    def wait_reachable(name):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            time.sleep(0.005)  # the start of a peer is not reported
            try:
                return nearpath.call(name, shm_only=True)
            except nearpath.Error as error:
                assert error.kind == "unsent", error
        raise AssertionError(f"{name} is not reachable")

    def wait_for_body(self, wanted, name, path):
        end = time.monotonic() + DEADLINE
        while (body := bytes(nearpath.call(name, path=path, shm_only=True).body).decode()) != wanted:
            assert time.monotonic() < end, body
            time.sleep(0.005)  # polled: events have no response

    def test_a_response_is_read_while_its_payload_is_produced(self):
        closed = []

        def words():
            try:
                while True:
                    yield "word"
            finally:
                closed.append(True)

        with nearpath.call("parts", words(), path="/shout", stream=True, deadline=DEADLINE, shm_only=True) as answer:
            received = [bytes(next(answer.stream)) for _ in range(30)]
        self.assertEqual((received, answer.status, answer.path, closed), ([b"WORD"] * 30, 200, "shm", [True]))
        self.assertEqual((bytes(answer.body), list(answer.stream)), (b"", []))

    def test_a_body_may_exceed_the_unread_limits(self):
        pieces = (bytes([65 + k % 26]) * 100_000 for k in range(100))
        answer = nearpath.call("parts", pieces, path="/shout", stream=True, deadline=DEADLINE)
        self.assertEqual(sum(len(part) for part in answer.stream), 10_000_000)
        whole = nearpath.call("parts", iter([b"a" * 70_000, "b" * 70_000]), path="/shout", deadline=DEADLINE)
        self.assertEqual(bytes(whole.body), b"A" * 70_000 + b"B" * 70_000)

    def test_a_handler_reads_a_streamed_body(self):
        for name in ("parts", "callee", "threads"):
            answer = nearpath.call(name, iter([bytes(100_000)] * 20), path="/count", deadline=DEADLINE)
            self.assertEqual(bytes(answer.body), b"2000000", name)
        answer = nearpath.call("parts", iter([b"a" * 100_000, b"b" * 100_000]), path="/body", deadline=DEADLINE)
        self.assertEqual(bytes(answer.body), b"a" * 100_000 + b"b" * 100_000)

    def test_a_stream_is_forwarded_as_it_arrives(self):
        pieces = (b"x" * 50_000 for _ in range(60))
        answer = nearpath.call("parts", pieces, path="/pass", stream=True, deadline=DEADLINE)
        self.assertEqual(sum(bytes(part).count(b"X") for part in answer.stream), 3_000_000)

    def test_a_slow_reader_stops_the_generator_and_a_leaving_one_closes_it(self):
        before = bytes(nearpath.call("callee", path="/seen").body).split()
        with nearpath.call("callee", path="/events", stream=True, deadline=DEADLINE) as answer:
            self.assertEqual((answer.status, answer.headers["content-type"]), (207, "text/event-stream"))
            self.assertTrue(bytes(next(answer.stream)).startswith(b"data: "))
            for _ in range(50):  # its other thread responds meanwhile
                made = int(nearpath.call("callee", path="/seen").body.tobytes().split()[0])
                self.assertLessEqual(made - int(before[0]), 12, "eight unread parts, and one or two in progress")
        end = time.monotonic() + DEADLINE
        while bytes(nearpath.call("callee", path="/seen").body).split()[1] == before[1]:
            self.assertLess(time.monotonic(), end, "the generator is never closed")

    def test_an_aborted_body_is_an_error_and_never_an_end(self):
        for name in ("parts", "threads"):
            answer = nearpath.call(name, path="/broken", stream=True, deadline=DEADLINE)
            with self.assertRaises(nearpath.Error) as caught:
                self.assertEqual([bytes(part) for part in answer.stream], [])
            self.assertEqual((caught.exception.kind, caught.exception.function), ("truncated", name))
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.call("parts", path="/broken", deadline=DEADLINE)
        self.assertEqual(caught.exception.kind, "truncated")

    def test_an_exception_of_a_payload_is_raised_by_the_call(self):
        def breaks():
            yield "some"
            raise LookupError("no more")

        with self.assertRaisesRegex(LookupError, "no more"):
            nearpath.call("parts", breaks(), path="/count", deadline=DEADLINE)
        self.assertEqual(bytes(nearpath.call("parts", "fine", path="/shout").body), b"FINE")

    def test_several_threads_serve_at_once(self):
        outcomes = nearpath.gather(*[("threads", "")] * 4, path="/together", deadline=DEADLINE)
        self.assertEqual([bytes(outcome.body) for outcome in outcomes], [b"together"] * 4)

    def test_an_event_reaches_its_subscribers_only(self):
        self.assertEqual(nearpath.publish("orders", b"new"), nearpath.Published(1, 0))
        self.assertEqual(nearpath.publish("others", b"new"), nearpath.Published(0, 0))
        nearpath.notify("listens-orders", b"plain", shm_only=True)
        self.wait_for_body("[('orders', b'new'), (None, b'plain')]", "listens-orders", "/topics")
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.publish("orders/#")
        self.assertEqual(caught.exception.kind, "name")

    def test_a_burst_stays_in_shared_memory(self):
        answers = nearpath.gather(*[("parts", str(k)) for k in range(1000)], shm_only=True, deadline=DEADLINE)
        self.assertEqual([bytes(answer.body) for answer in answers], [str(k).encode() for k in range(1000)])

    def test_threads_call_concurrently(self):
        wanted, received = [str(k).encode() for k in range(4)], {}

        def call(k):
            received[k] = bytes(nearpath.call("callee", wanted[k], deadline=DEADLINE).body)

        threads = [threading.Thread(target=call, args=[k]) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        self.assertEqual([received[k] for k in range(4)], wanted)

    def test_ctrl_c_ends_a_waiting_call(self):
        code = """
import nearpath, os, signal, sys, threading
while True:
    try:
        nearpath.call("callee", shm_only=True)
        break
    except nearpath.Error:
        pass
def press():
    os.write(1, b"waits")
threading.Timer(0.1, press).start()
try:
    if sys.argv[1] == "call":
        nearpath.call("callee", path="/hang")
    else:
        nearpath.gather(("callee", ""), ("callee", ""), path="/hang")
except KeyboardInterrupt:
    os._exit(7)
"""
        for how in ("call", "gather"):
            environment = {**os.environ, "NEARPATH_DISPATCH": self.domain.dispatch_socket("other")}
            command = [sys.executable, "-c", code, how]
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
            with process.stdout:
                self.assertEqual(process.stdout.read(5), b"waits")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(DEADLINE), 7, how)


if __name__ == "__main__":
    unittest.main()
