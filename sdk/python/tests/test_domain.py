"""Functions of one domain, each in its own process."""

import gc
import os
import time
import unittest

from fixtures import DEADLINE, Domain, run_in_child

import nearpath


class DomainTests(unittest.TestCase):
    """This process is the function `caller`. It keeps its endpoint, so all tests use one domain."""

    @classmethod
    def setUpClass(cls):
        cls.domain = Domain("caller>front", "caller>callee", "front>callee", "caller>exiting")
        os.environ["NEARPATH_DISPATCH"] = cls.domain.dispatch_socket("caller")
        cls.domain.start("front")
        cls.callee, cls.port = cls.domain.start("callee")
        cls.wait_all_reachable()

    @classmethod
    def tearDownClass(cls):
        del os.environ["NEARPATH_DISPATCH"]
        codes = cls.domain.stop()
        assert codes[:2] == [0, 0] and set(codes[2:]) <= {3}, codes

    @classmethod
    def wait_all_reachable(cls):
        cls.wait_reachable("front", path="/on")  # so that front has reached callee
        cls.wait_reachable("callee")

    @staticmethod
    def wait_reachable(name, **options):
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            time.sleep(0.005)  # the start of a peer is not reported
            try:
                answer = nearpath.call(name, shm_only=True, **options)
                if answer.status == 200:
                    return
            except nearpath.Error as error:
                assert error.kind in ("unsent", "platform"), error
        raise AssertionError(f"{name} is not reachable")

    def test_a_call_goes_through_shared_memory(self):
        answer = nearpath.call("callee", b"near", path="/upper")
        self.assertEqual((answer.status, bytes(answer.body), answer.path), (200, b"NEAR", "shm"))
        self.assertIsInstance(answer.instance, int)

    def test_a_forked_child_is_its_own_endpoint(self):
        def work():
            answer = nearpath.call("callee", b"child", path="/upper", shm_only=True)
            assert bytes(answer.body) == b"CHILD", bytes(answer.body)

        # A child's endpoint joins during its calls, so an early call with shm_only may fail.
        until = lambda: self.wait_reachable("callee") or work()
        self.assertEqual(run_in_child(until), 0)
        answer = nearpath.call("callee", b"parent", path="/upper", shm_only=True)
        self.assertEqual(bytes(answer.body), b"PARENT")

    def test_a_handler_reads_the_requests_properties(self):
        answer = nearpath.call("callee", path="/how", method="PUT", headers={"x-one": b"1"}, deadline=30)
        self.assertEqual(bytes(answer.body).decode(), "['shm', 'PUT', 'caller.openfaas-fn', '1', True]")
        self.assertEqual((answer.status, answer.headers["x-by"]), (203, "python"))

    def test_a_handler_may_return_each_kind_of_response(self):
        outcomes = {path: nearpath.call("callee", b"x", path=path) for path in ("/pair", "/nothing", "/raise", "/echo")}
        outcomes = {path: (answer.status, bytes(answer.body)) for path, answer in outcomes.items()}
        wanted = {"/pair": (418, b"tea"), "/nothing": (200, b""), "/raise": (500, b"ValueError: it broke"), "/echo": (200, b"x")}
        self.assertEqual(outcomes, wanted)

    def test_a_handler_calls_another_function(self):
        answer = nearpath.call("front", b"on and on", path="/on")
        self.assertEqual((bytes(answer.body), answer.headers["x-inner"], answer.path), (b"on and on", "shm", "shm"))

    def test_gather_keeps_the_order_of_calls(self):
        answers = nearpath.gather(*[("callee", str(k)) for k in range(50)])
        self.assertEqual([bytes(answer.body) for answer in answers], [str(k).encode() for k in range(50)])

    def test_large_bodies_arrive_complete(self):
        for length in (0, 1, 4096, 1 << 20, 5 << 20):
            body = os.urandom(length)
            self.assertEqual(bytes(nearpath.call("callee", body).body), body)

    def test_a_view_outlives_its_response(self):
        view = nearpath.call("callee", b"kept").body
        part = view[1:3]
        for k in range(1000):  # other slots are reused, this one is not
            nearpath.call("callee", b"other")
        gc.collect()
        self.assertEqual((bytes(view), bytes(part)), (b"kept", b"ep"))

    def test_released_slots_are_reused(self):
        for _ in range(200):  # more slots than the domain has
            self.assertEqual(len(nearpath.call("callee", bytes(1 << 20)).body), 1 << 20)

    def test_an_event_reaches_its_function(self):
        nearpath.notify("callee", b"event", shm_only=True)
        self.assertEqual(bytes(nearpath.call("callee", b"after").body), b"after")

    def test_a_call_without_an_edge_is_refused(self):
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.call("unconnected", shm_only=True)
        self.assertEqual((caught.exception.kind, caught.exception.function), ("unsent", "unconnected"))

    def test_the_death_of_a_callee_ends_its_call(self):
        self.domain.start("exiting")
        self.wait_reachable("exiting")
        with self.assertRaises(nearpath.Error) as caught:
            nearpath.call("exiting", path="/die", deadline=DEADLINE)
        error = caught.exception
        self.assertEqual((error.kind, error.path, error.function, error.retry_is_safe), ("died", "shm", "exiting", False))

    def test_calls_resume_after_a_restart_of_the_node(self):
        self.domain.stop_domain()
        with self.assertRaises(nearpath.Error):
            while True:  # open channels live as long as both ends
                nearpath.call("callee", shm_only=True)
        self.domain.start_domain()
        self.wait_all_reachable()
        self.assertEqual(nearpath.call("front", b"again", path="/on").headers["x-inner"], "shm")
