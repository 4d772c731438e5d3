"""`nearpath.requests` in a domain: calls go through memory."""

import os
import time
import unittest

from fixtures import DEADLINE, Domain, OpenFaas, need_requests

need_requests()

import nearpath
from nearpath import requests
from requests_cases import RequestsCases


class InADomain(RequestsCases, unittest.TestCase):
    """This process is the function `caller`."""

    way, teapot, slow, cut = "shm", "pair", "hang", "broken"

    @classmethod
    def setUpClass(cls):
        cls.gateway = OpenFaas()
        cls.domain = Domain("caller>callee", "caller>mirror")
        cls.before = dict(os.environ)
        os.environ.update({"NEARPATH_GATEWAY": cls.gateway.url, "NEARPATH_DISPATCH": cls.domain.dispatch_socket("caller")})
        cls.domain.start("callee", STREAM="1")
        cls.near(nearpath.call, "callee", near_only=True, path="/seen")

    @staticmethod
    def near(call, *what, **how):
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return call(*what, **how)
            except nearpath.Error as error:
                assert error.kind in ("unsent", "platform") and time.monotonic() < end, error
                time.sleep(0.005)  # nobody tells when another process is there

    @classmethod
    def tearDownClass(cls):
        codes = cls.domain.stop()
        cls.gateway.stop()
        del os.environ["NEARPATH_DISPATCH"], os.environ["NEARPATH_GATEWAY"]
        assert codes == [0], codes

    def at(self, path):
        return f"http://gateway:8080/function/callee/{path}"

    def test_every_form_of_a_name(self):
        for url in ("nearpath://callee/mirror", "http://callee/mirror", f"{self.gateway.url}/function/callee.openfaas-fn/mirror"):
            answer = requests.put(url, data="x")
            self.assertEqual((answer.json()["method"], answer.headers["X-Nearpath-Path"]), ("PUT", "shm"), url)

    def test_a_stream_comes_as_it_is_made(self):
        with requests.post(self.at("shout"), data=(word for word in ("one", "two")), stream=True) as answer:
            self.assertEqual((list(answer.iter_content(1024)), answer.headers["X-Nearpath-Path"]), ([b"ONE", b"TWO"], "shm"))
        with requests.get(self.at("events"), stream=True) as answer:
            self.assertEqual(next(answer.iter_lines())[:6], b"data: ")
        seen = lambda: requests.get(self.at("seen")).text.split()
        while seen()[1] == "0":
            pass  # who leaves is heard; the test has a deadline

    def test_a_silence_is_a_timeout(self):
        with requests.get(self.at("hang"), stream=True, timeout=(1, 0.05)) as answer:
            with self.assertRaises(requests.ConnectionError) as caught:
                list(answer.iter_content(None))
        self.assertIn("no answer before", str(caught.exception))

    def test_what_the_domain_does_not_reach_goes_over_http(self):
        answer = requests.post(f"{self.gateway.url}/function/mirror", data=(word for word in (b"one", b"two")))
        self.assertEqual((answer.json()["body"], answer.headers["X-Nearpath-Path"]), ("onetwo", "http; not_nearer=no_endpoint"))
        answer = nearpath.call("mirror", b"x")
        self.assertEqual((answer.path, answer.not_nearer), ("http", "no_endpoint"))

    def test_cookies(self):
        with requests.Session() as session:
            session.cookies.set("mine", "1", domain="gateway.local")
            session.get(self.at("mirror"), cookies={"once": "2"})
            told = session.get(self.at("mirror"), cookies={"once": "2"}).json()
        self.assertIn("once=2", told["headers"]["cookie"])
        self.assertNotIn("accept-encoding", told["headers"])


if __name__ == "__main__":
    unittest.main()
