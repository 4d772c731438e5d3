"""Bodies bit by bit, topics, several threads, and signals: in a domain, each function a process."""

import os
import signal
import subprocess
import sys
import threading
import time
import unittest

from fixtures import DEADLINE, HERE, Domain

import nearpath


class Streams(unittest.TestCase):
    """This process is the function `caller`, for all tests."""

    @classmethod
    def setUpClass(cls):
        edges = ["caller>parts", "caller>callee", "parts>callee", "caller>crew", "caller>listens-orders", "other>callee"]
        cls.domain = Domain(*edges)
        os.environ["NEARPATH_DISPATCH"] = cls.domain.dispatch_socket("caller")
        cls.domain.start("parts", STREAM="1")
        cls.domain.start("callee", STREAM="1", THREADS="2")
        cls.domain.start("crew", THREADS="4")
        cls.domain.start("listens-orders")
        for name in ("parts", "callee", "crew", "listens-orders"):
            cls.until_near(name)

    @classmethod
    def tearDownClass(cls):
        del os.environ["NEARPATH_DISPATCH"]
        codes = cls.domain.stop()
        assert set(codes) == {0}, codes

    @staticmethod
    def until_near(name):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            time.sleep(0.005)  # nobody tells when another process is there
            try:
                return nearpath.call(name, near_only=True)
            except nearpath.Error as error:
                assert error.kind == "unsent", error
        raise AssertionError(f"{name} never comes")

    def until(self, wanted, name, path):
        end = time.monotonic() + DEADLINE
        while (told := bytes(nearpath.call(name, path=path, near_only=True).body).decode()) != wanted:
            assert time.monotonic() < end, told
            time.sleep(0.005)  # it is told by the next call, and nobody tells when

    def test_an_answer_is_read_while_its_payload_is_made(self):
        closed = []

        def says():
            try:
                while True:
                    yield "word"
            finally:
                closed.append(True)

        with nearpath.call("parts", says(), path="/shout", stream=True, deadline=DEADLINE, near_only=True) as answer:
            heard = [bytes(next(answer.stream)) for _ in range(30)]
        self.assertEqual((heard, answer.status, answer.path, closed), ([b"WORD"] * 30, 200, "shm", [True]))
        self.assertEqual((bytes(answer.body), list(answer.stream)), (b"", []))

    def test_more_than_both_sides_may_have_unread(self):
        pieces = (bytes([65 + k % 26]) * 100_000 for k in range(100))
        answer = nearpath.call("parts", pieces, path="/shout", stream=True, deadline=DEADLINE)
        self.assertEqual(sum(len(part) for part in answer.stream), 10_000_000)
        whole = nearpath.call("parts", iter([b"a" * 70_000, "b" * 70_000]), path="/shout", deadline=DEADLINE)
        self.assertEqual(bytes(whole.body), b"A" * 70_000 + b"B" * 70_000)

    def test_what_a_handler_reads(self):
        for name in ("parts", "callee", "crew"):
            told = nearpath.call(name, iter([bytes(100_000)] * 20), path="/count", deadline=DEADLINE)
            self.assertEqual(bytes(told.body), b"2000000", name)
        told = nearpath.call("parts", iter([b"a" * 100_000, b"b" * 100_000]), path="/body", deadline=DEADLINE)
        self.assertEqual(bytes(told.body), b"a" * 100_000 + b"b" * 100_000)

    def test_passed_on_as_it_comes(self):
        pieces = (b"x" * 50_000 for _ in range(60))
        answer = nearpath.call("parts", pieces, path="/pass", stream=True, deadline=DEADLINE)
        self.assertEqual(sum(bytes(part).count(b"X") for part in answer.stream), 3_000_000)

    def test_a_slow_reader_stops_the_generator_and_one_that_leaves_closes_it(self):
        before = bytes(nearpath.call("callee", path="/seen").body).split()
        with nearpath.call("callee", path="/events", stream=True, deadline=DEADLINE) as answer:
            self.assertEqual((answer.status, answer.headers["content-type"]), (207, "text/event-stream"))
            self.assertTrue(bytes(next(answer.stream)).startswith(b"data: "))
            for _ in range(50):  # its other thread answers meanwhile
                made = int(nearpath.call("callee", path="/seen").body.tobytes().split()[0])
                self.assertLessEqual(made - int(before[0]), 12, "eight parts are unread, and one or two are about to go")
        end = time.monotonic() + DEADLINE
        while bytes(nearpath.call("callee", path="/seen").body).split()[1] == before[1]:
            self.assertLess(time.monotonic(), end, "the generator is never closed")

    def test_what_is_broken_off_is_an_error_and_never_an_end(self):
        for name in ("parts", "crew"):
            answer = nearpath.call(name, path="/broken", stream=True, deadline=DEADLINE)
            with self.assertRaises(nearpath.Error) as caught:
                self.assertEqual([bytes(part) for part in answer.stream], [])
            self.assertEqual((caught.exception.kind, caught.exception.function), ("cut", name))
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.call("parts", path="/broken", deadline=DEADLINE)
        self.assertEqual(caught.exception.kind, "cut")

    def test_a_payload_that_raises_raises_here(self):
        def breaks():
            yield "some"
            raise LookupError("no more")

        with self.assertRaisesRegex(LookupError, "no more"):
            nearpath.call("parts", breaks(), path="/count", deadline=DEADLINE)
        self.assertEqual(bytes(nearpath.call("parts", "fine", path="/shout").body), b"FINE")

    def test_several_threads_answer_at_once(self):
        outcomes = nearpath.gather(*[("crew", "")] * 4, path="/together", deadline=DEADLINE)
        self.assertEqual([bytes(outcome.body) for outcome in outcomes], [b"together"] * 4)

    def test_an_event_goes_to_who_subscribes(self):
        self.assertEqual(nearpath.publish("orders", b"new"), nearpath.Published(1, 0))
        self.assertEqual(nearpath.publish("others", b"new"), nearpath.Published(0, 0))
        nearpath.notify("listens-orders", b"plain", near_only=True)
        self.until("[('orders', b'new'), (None, b'plain')]", "listens-orders", "/topics")
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.publish("orders/#")
        self.assertEqual(caught.exception.kind, "name")

    def test_a_burst_stays_in_memory(self):
        answers = nearpath.gather(*[("parts", str(k)) for k in range(1000)], near_only=True, deadline=DEADLINE)
        self.assertEqual([bytes(answer.body) for answer in answers], [str(k).encode() for k in range(1000)])

    def test_threads_call_at_once(self):
        wanted, told = [str(k).encode() for k in range(4)], {}

        def asks(k):
            told[k] = bytes(nearpath.call("callee", wanted[k], deadline=DEADLINE).body)

        threads = [threading.Thread(target=asks, args=[k]) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        self.assertEqual([told[k] for k in range(4)], wanted)

    def test_ctrl_c_ends_a_call_that_waits(self):
        code = """
import nearpath, os, signal, sys, threading
while True:
    try:
        nearpath.call("callee", near_only=True)
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
            words = [sys.executable, "-c", code, how]
            process = subprocess.Popen(words, env=environment, stdout=subprocess.PIPE)
            with process.stdout:
                self.assertEqual(process.stdout.read(5), b"waits")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(DEADLINE), 7, how)


if __name__ == "__main__":
    unittest.main()
