"""Payloads that are written where they go out."""

import io
import os
import time
import unittest

from fixtures import DEADLINE, Domain

import nearpath
from nearpath import _http


def until_near(name):
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        try:
            return nearpath.call(name, near_only=True)
        except nearpath.Error:
            time.sleep(0.005)  # nobody tells when another process is there
    raise AssertionError(f"{name} never comes")


def filled(length, byte):
    buffer = nearpath.buffer(length)
    with memoryview(buffer) as place:
        place[:] = bytes([byte]) * length
    return buffer


class Buffers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.domain = Domain("caller>callee")
        os.environ["NEARPATH_DISPATCH"] = cls.domain.dispatch_socket("caller")
        cls.domain.start("callee")
        until_near("callee")

    @classmethod
    def tearDownClass(cls):
        del os.environ["NEARPATH_DISPATCH"]
        codes = cls.domain.stop()
        assert codes == [0], codes

    def test_a_call_and_an_answer_in_place(self):
        for length in (0, 1, 5000, 1 << 19):
            buffer = filled(length, 7)
            self.assertTrue(buffer.in_slot)
            answer = nearpath.call("callee", buffer, path="/buffer", near_only=True)
            self.assertEqual((bytes(answer.body), answer.headers["x-in-slot"]), (b"\7" * length, "True"))

    def test_what_has_no_slot_goes_too(self):
        buffer = filled(5 << 20, 3)
        self.assertFalse(buffer.in_slot)
        self.assertEqual(bytes(nearpath.call("callee", buffer, path="/buffer").body), b"\3" * (5 << 20))

    def test_it_is_zeros_and_can_be_cut(self):
        buffer = nearpath.buffer(1000)
        self.assertEqual(bytes(buffer), bytes(1000))
        length = io.BytesIO(b"read into").readinto(buffer)
        buffer.truncate(length)
        self.assertEqual((len(buffer), bytes(nearpath.call("callee", buffer).body)), (9, b"read into"))

    def test_nobody_writes_after_it_was_handed_over(self):
        buffer = nearpath.buffer(10)
        place, part = memoryview(buffer), memoryview(buffer)[2:4]
        part[:] = b"ok"
        for still in (place, part):
            with self.assertRaisesRegex(BufferError, "release its memoryviews"):
                nearpath.call("callee", buffer)
            with self.assertRaises(BufferError):
                buffer.truncate(1)
            still.release()
        self.assertEqual(bytes(nearpath.call("callee", buffer).body), b"\0\0ok" + bytes(6))
        for late in (lambda: nearpath.call("callee", buffer), lambda: memoryview(buffer), lambda: len(buffer)):
            with self.assertRaisesRegex(BufferError, "was handed over"):
                late()

    def test_a_handler_that_can_still_write_fails(self):
        answer = nearpath.call("callee", path="/held")
        self.assertEqual((answer.status, b"BufferError" in bytes(answer.body)), (500, True))

    def test_a_view_of_it_is_copied(self):
        buffer = filled(100, 1)
        with memoryview(buffer) as place:
            self.assertEqual(bytes(nearpath.call("callee", place).body), b"\1" * 100)
            place[:] = b"\2" * 100
        self.assertEqual(bytes(nearpath.call("callee", buffer).body), b"\2" * 100)

    def test_slots_come_back(self):
        for _ in range(300):  # far more than the domain has
            nearpath.buffer(1 << 19)
            nearpath.notify("callee", filled(1 << 19, 1))
            self.assertEqual(len(nearpath.call("callee", filled(1 << 19, 1), path="/buffer").body), 1 << 19)

    def test_what_somebody_still_sees_stays_as_it_is(self):
        answer = nearpath.call("callee", filled(2000, 9))
        view = answer.body
        again = nearpath.call("callee", view)
        for _ in range(100):
            nearpath.call("callee", filled(2000, 8))
        self.assertEqual((bytes(view), bytes(again.body)), (b"\x09" * 2000, b"\x09" * 2000))

    def test_the_same_over_http_alone(self):
        buffer = _http.buffer(4)
        with memoryview(buffer) as place:
            with self.assertRaises(BufferError):
                _http._bytes(buffer)
            place[:] = b"abcd"
        buffer.truncate(3)
        self.assertEqual(_http._bytes(buffer), b"abc")
        with self.assertRaises(BufferError):
            _http._bytes(buffer)
