"""`nearpath.requests` in a domain, where calls go through shared memory."""

import os
import time
import unittest

from fixtures import DEADLINE, Domain, OpenFaasGateway, require_requests

require_requests()

import nearpath
from nearpath import requests
from requests_cases import RequestsCases


class DomainRequestTests(RequestsCases, unittest.TestCase):
    """This process is the function `caller`."""

    path, teapot, slow, truncated = "shm", "pair", "hang", "broken"

    @classmethod
    def setUpClass(cls):
        cls.gateway = OpenFaasGateway()
        cls.domain = Domain("caller>callee", "caller>mirror")
        cls.before = dict(os.environ)
        os.environ.update({"NEARPATH_GATEWAY": cls.gateway.url, "NEARPATH_DISPATCH": cls.domain.dispatch_socket("caller")})
        cls.domain.start("callee", STREAM="1")
        cls.call_until_reachable(nearpath.call, "callee", shm_only=True, path="/seen")

    @staticmethod
    def call_until_reachable(call, *arguments, **options):
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return call(*arguments, **options)
            except nearpath.Error as error:
                assert error.kind in ("unsent", "platform") and time.monotonic() < end, error
                time.sleep(0.005)  # the start of a peer is not reported

    @classmethod
    def tearDownClass(cls):
        codes = cls.domain.stop()
        cls.gateway.stop()
        del os.environ["NEARPATH_DISPATCH"], os.environ["NEARPATH_GATEWAY"]
        assert codes == [0], codes

    def at(self, path):
        return f"http://gateway:8080/function/callee/{path}"

    def test_each_name_form_goes_through_shared_memory(self):
        for url in ("nearpath://callee/mirror", "http://callee/mirror", f"{self.gateway.url}/function/callee.openfaas-fn/mirror"):
            answer = requests.put(url, data="x")
            self.assertEqual((answer.json()["method"], answer.headers["X-Nearpath-Path"]), ("PUT", "shm"), url)

    def test_a_stream_arrives_while_it_is_produced(self):
        with requests.post(self.at("shout"), data=(word for word in ("one", "two")), stream=True) as answer:
            self.assertEqual((list(answer.iter_content(1024)), answer.headers["X-Nearpath-Path"]), ([b"ONE", b"TWO"], "shm"))
        with requests.get(self.at("events"), stream=True) as answer:
            self.assertEqual(next(answer.iter_lines())[:6], b"data: ")
        seen = lambda: requests.get(self.at("seen")).text.split()
        while seen()[1] == "0":
            pass  # polled until the generator has ended

    def test_a_read_timeout_limits_each_pause(self):
        with requests.get(self.at("hang"), stream=True, timeout=(1, 0.05)) as answer:
            with self.assertRaises(requests.ConnectionError) as caught:
                list(answer.iter_content(None))
        self.assertIn("no answer before", str(caught.exception))

    def test_an_unreachable_function_is_called_over_http(self):
        answer = requests.post(f"{self.gateway.url}/function/mirror", data=(word for word in (b"one", b"two")))
        self.assertEqual((answer.json()["body"], answer.headers["X-Nearpath-Path"]), ("onetwo", "http; obstacle=no_endpoint"))
        answer = nearpath.call("mirror", b"x")
        self.assertEqual((answer.path, answer.obstacle), ("http", "no_endpoint"))

    def test_cookies_go_through_shared_memory(self):
        with requests.Session() as session:
            session.cookies.set("mine", "1", domain="gateway.local")
            session.get(self.at("mirror"), cookies={"once": "2"})
            request = session.get(self.at("mirror"), cookies={"once": "2"}).json()
        self.assertIn("once=2", request["headers"]["cookie"])
        self.assertNotIn("accept-encoding", request["headers"])


if __name__ == "__main__":
    unittest.main()
