"""Payloads that are written where they go out."""

import io
import os
import time
import unittest

from fixtures import DEADLINE, Domain

import nearpath
from nearpath import _http


def wait_reachable(name):
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        try:
            return nearpath.call(name, shm_only=True)
        except nearpath.Error:
            time.sleep(0.005)  # the start of a peer is not reported
    raise AssertionError(f"{name} is not reachable")


def filled(length, byte):
    buffer = nearpath.buffer(length)
    with memoryview(buffer) as place:
        place[:] = bytes([byte]) * length
    return buffer


class BufferTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.domain = Domain("caller>callee")
        os.environ["NEARPATH_DISPATCH"] = cls.domain.dispatch_socket("caller")
        cls.domain.start("callee")
        wait_reachable("callee")

    @classmethod
    def tearDownClass(cls):
        del os.environ["NEARPATH_DISPATCH"]
        codes = cls.domain.stop()
        assert codes == [0], codes

    def test_a_call_and_a_response_are_written_in_place(self):
        for length in (0, 1, 5000, 1 << 19):
            buffer = filled(length, 7)
            self.assertTrue(buffer.in_slot)
            answer = nearpath.call("callee", buffer, path="/buffer", shm_only=True)
            self.assertEqual((bytes(answer.body), answer.headers["x-in-slot"]), (b"\7" * length, "True"))

    def test_a_buffer_without_a_slot_is_sent(self):
        buffer = filled(5 << 20, 3)
        self.assertFalse(buffer.in_slot)
        self.assertEqual(bytes(nearpath.call("callee", buffer, path="/buffer").body), b"\3" * (5 << 20))

    def test_a_buffer_is_zeroed_and_can_be_truncated(self):
        buffer = nearpath.buffer(1000)
        self.assertEqual(bytes(buffer), bytes(1000))
        length = io.BytesIO(b"read into").readinto(buffer)
        buffer.truncate(length)
        self.assertEqual((len(buffer), bytes(nearpath.call("callee", buffer).body)), (9, b"read into"))

    def test_a_consumed_buffer_cannot_be_written(self):
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
            with self.assertRaisesRegex(BufferError, "was consumed by an earlier call"):
                late()

    def test_a_handler_that_returns_an_exported_buffer_fails(self):
        answer = nearpath.call("callee", path="/held")
        self.assertEqual((answer.status, b"BufferError" in bytes(answer.body)), (500, True))

    def test_a_view_of_a_buffer_is_copied(self):
        buffer = filled(100, 1)
        with memoryview(buffer) as place:
            self.assertEqual(bytes(nearpath.call("callee", place).body), b"\1" * 100)
            place[:] = b"\2" * 100
        self.assertEqual(bytes(nearpath.call("callee", buffer).body), b"\2" * 100)

    def test_consumed_slots_are_reused(self):
        for _ in range(300):  # far more than the domain has
            nearpath.buffer(1 << 19)
            nearpath.notify("callee", filled(1 << 19, 1))
            self.assertEqual(len(nearpath.call("callee", filled(1 << 19, 1), path="/buffer").body), 1 << 19)

    def test_a_body_with_a_view_keeps_its_content(self):
        answer = nearpath.call("callee", filled(2000, 9))
        view = answer.body
        again = nearpath.call("callee", view)
        for _ in range(100):
            nearpath.call("callee", filled(2000, 8))
        self.assertEqual((bytes(view), bytes(again.body)), (b"\x09" * 2000, b"\x09" * 2000))

    def test_buffers_work_without_the_native_module(self):
        buffer = _http.buffer(4)
        with memoryview(buffer) as place:
            with self.assertRaises(BufferError):
                _http._bytes(buffer)
            place[:] = b"abcd"
        buffer.truncate(3)
        self.assertEqual(_http._bytes(buffer), b"abc")
        with self.assertRaises(BufferError):
            _http._bytes(buffer)
