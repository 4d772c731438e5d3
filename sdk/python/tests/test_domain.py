"""Functions of one domain: a real hub, each function a process."""

import gc
import os
import time
import unittest

from fixtures import DEADLINE, Domain, in_a_child

import nearpath


class InADomain(unittest.TestCase):
    """This process is the function `caller`. It keeps its party for as long as it lives: one domain for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.domain = Domain("caller>front", "caller>callee", "front>callee", "caller>mortal")
        os.environ["NEARPATH_DISPATCH"] = cls.domain.dispatch_socket("caller")
        cls.domain.start("front")
        cls.callee, cls.port = cls.domain.start("callee")
        cls.all_near()

    @classmethod
    def tearDownClass(cls):
        del os.environ["NEARPATH_DISPATCH"]
        codes = cls.domain.stop()
        assert codes[:2] == [0, 0] and set(codes[2:]) <= {3}, codes

    @classmethod
    def all_near(cls):
        cls.until_near("front", path="/on")  # so front has found callee
        cls.until_near("callee")

    @staticmethod
    def until_near(name, **how):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            time.sleep(0.005)  # nobody tells when another process is there
            try:
                answer = nearpath.call(name, near_only=True, **how)
                if answer.status == 200:
                    return
            except nearpath.Error as error:
                assert error.kind in ("unsent", "platform"), error
        raise AssertionError(f"{name} never comes")

    def test_a_call_goes_through_memory(self):
        answer = nearpath.call("callee", b"near", path="/upper")
        self.assertEqual((answer.status, bytes(answer.body), answer.path), (200, b"NEAR", "shm"))
        self.assertIsInstance(answer.instance, int)

    def test_a_child_that_was_forked_is_a_party_of_its_own(self):
        def work():
            answer = nearpath.call("callee", b"child", path="/upper", near_only=True)
            assert bytes(answer.body) == b"CHILD", bytes(answer.body)

        # The party of a child comes while it calls: a call that is near only may be too early.
        until = lambda: self.until_near("callee") or work()
        self.assertEqual(in_a_child(until), 0)
        answer = nearpath.call("callee", b"parent", path="/upper", near_only=True)
        self.assertEqual(bytes(answer.body), b"PARENT")

    def test_what_a_handler_sees(self):
        answer = nearpath.call("callee", path="/how", method="PUT", headers={"x-one": b"1"}, deadline=30)
        self.assertEqual(bytes(answer.body).decode(), "['shm', 'PUT', 'caller.openfaas-fn', '1', True]")
        self.assertEqual((answer.status, answer.headers["x-by"]), (203, "python"))

    def test_what_a_handler_may_return(self):
        told = {path: nearpath.call("callee", b"x", path=path) for path in ("/pair", "/nothing", "/raise", "/echo")}
        told = {path: (answer.status, bytes(answer.body)) for path, answer in told.items()}
        wanted = {"/pair": (418, b"tea"), "/nothing": (200, b""), "/raise": (500, b"ValueError: it broke"), "/echo": (200, b"x")}
        self.assertEqual(told, wanted)

    def test_a_chain(self):
        answer = nearpath.call("front", b"on and on", path="/on")
        self.assertEqual((bytes(answer.body), answer.headers["x-inner"], answer.path), (b"on and on", "shm", "shm"))

    def test_several_at_once(self):
        answers = nearpath.gather(*[("callee", str(k)) for k in range(50)])
        self.assertEqual([bytes(answer.body) for answer in answers], [str(k).encode() for k in range(50)])

    def test_large_bodies(self):
        for length in (0, 1, 4096, 1 << 20, 5 << 20):
            body = os.urandom(length)
            self.assertEqual(bytes(nearpath.call("callee", body).body), body)

    def test_a_view_outlives_its_response(self):
        view = nearpath.call("callee", b"kept").body
        part = view[1:3]
        for k in range(1000):  # slots are used again, this one is not
            nearpath.call("callee", b"other")
        gc.collect()
        self.assertEqual((bytes(view), bytes(part)), (b"kept", b"ep"))

    def test_slots_come_back(self):
        for _ in range(200):  # far more than the domain has, if views kept them
            self.assertEqual(len(nearpath.call("callee", bytes(1 << 20)).body), 1 << 20)

    def test_an_event(self):
        nearpath.notify("callee", b"event", near_only=True)
        self.assertEqual(bytes(nearpath.call("callee", b"after").body), b"after")

    def test_a_stranger(self):
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.call("stranger", near_only=True)
        self.assertEqual((caught.exception.kind, caught.exception.function), ("unsent", "stranger"))

    def test_a_callee_that_dies(self):
        self.domain.start("mortal")
        self.until_near("mortal")
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.call("mortal", path="/die", deadline=DEADLINE)
        error = caught.exception
        self.assertEqual((error.kind, error.path, error.function, error.retry_is_safe), ("died", "shm", "mortal", False))

    def test_the_node_restarts(self):
        self.domain.end()
        with self.assertRaises(nearpath.Error):
            while True:  # channels that are open go on for as long as both ends live
                nearpath.call("callee", near_only=True)
        self.domain.begin()
        self.all_near()
        self.assertEqual(nearpath.call("front", b"again", path="/on").headers["x-inner"], "shm")
