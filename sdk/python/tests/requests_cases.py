"""Tests of `nearpath.requests` that pass on each path."""

import gzip
import io

import requests as plain
from fixtures import DEADLINE
from urllib3.util import Retry, Timeout

from nearpath import requests


class RequestsCases:
    """Tests of requests to a function. `at` returns the URL of a path, `path` is the expected header."""

    path = None

    def test_a_response_has_status_fields_and_path(self):
        answer = requests.get(self.at("mirror"), params={"a": "b c"}, headers={"X-One": "1"}, timeout=DEADLINE)
        request = answer.json()
        self.assertEqual((answer.status_code, answer.reason, request["method"]), (200, "OK", "GET"))
        self.assertIn("a=b+c", request.get("query") or request["path"])
        self.assertEqual({name.lower(): value for name, value in request["headers"].items()}["x-one"], "1")
        self.assertEqual(answer.headers["X-Nearpath-Path"], self.path)
        self.assertIsInstance(answer, plain.Response)
        self.assertEqual(answer.url, self.at("mirror") + "?a=b+c")

    def test_each_kind_of_body_is_sent(self):
        for body, wanted in (
            ({"data": b"\x00xy"}, "\0xy"),
            ({"data": "xy"}, "xy"),
            ({"data": {"a": "1"}}, "a=1"),
            ({"json": [1]}, "[1]"),
            ({"data": io.BytesIO(b"file")}, "file"),
            ({"data": iter([b"one", b"two"])}, "onetwo"),
            ({"data": memoryview(b"view")}, "view"),
            ({}, ""),
        ):
            answer = requests.post(self.at("mirror"), timeout=DEADLINE, **body)
            self.assertEqual((answer.json()["body"], answer.headers["X-Nearpath-Path"]), (wanted, self.path))

    def test_redirects_and_compressed_responses_are_handled(self):
        answer = requests.get(self.at("moved"))
        self.assertEqual([each.status_code for each in answer.history], [302])
        self.assertIn("moved", answer.json()["path"])
        self.assertEqual(requests.get(self.at("moved"), allow_redirects=False).status_code, 302)
        self.assertEqual(requests.get(self.at("packed")).text, "unpacked")
        with requests.get(self.at("packed"), stream=True) as answer:
            self.assertEqual(b"".join(answer.iter_content(3)), b"unpacked")

    def test_head_has_no_body_and_errors_have_a_status(self):
        self.assertEqual(requests.head(self.at("mirror")).content, b"")
        with self.assertRaises(requests.HTTPError):
            requests.get(self.at(self.teapot)).raise_for_status()

    def test_the_retries_of_a_session_apply(self):
        for path, succeeds in (("flaky?a", True), ("flaky?b", False)):
            with requests.Session() as session:
                session.mount("http://", plain.adapters.HTTPAdapter(max_retries=Retry(2 if succeeds else 1, status_forcelist=[503], backoff_factor=0)))
                if succeeds:
                    self.assertEqual(session.get(self.at(path)).text, "3 times")
                else:
                    self.assertRaises(requests.exceptions.RetryError, session.get, self.at(path))
        every = Retry(3, status_forcelist=[503], allowed_methods=None)
        with requests.Session() as session:
            session.mount("http://", plain.adapters.HTTPAdapter(max_retries=every))
            answer = session.post(self.at("flaky?e"), data=io.BytesIO(b"file"))
            self.assertEqual((answer.text, len(answer.raw.retries.history)), ("3 times", 2))
        quiet = Retry(1, status_forcelist=[503], raise_on_status=False)
        with requests.Session() as session:
            session.mount("http://", plain.adapters.HTTPAdapter(max_retries=quiet))
            self.assertEqual(session.get(self.at("flaky?c")).status_code, 503)
            self.assertEqual(session.post(self.at("flaky?d")).status_code, 503)
            self.assertEqual(session.post(self.at("flaky?d")).status_code, 503)
            self.assertEqual(session.post(self.at("flaky?d")).text, "3 times", "a POST was repeated")

    def test_an_invalid_timeout_is_refused(self):
        for timeout in ("1", 0, -1, (1, 2, 3)):
            self.assertRaises(ValueError, requests.get, self.at("mirror"), timeout=timeout)
        with self.assertRaises(requests.exceptions.ReadTimeout):
            requests.get(self.at(self.slow), timeout=Timeout(total=0.1))

    def test_a_response_with_a_length_is_read_exactly(self):
        with requests.get(self.at("long"), stream=True) as answer:
            self.assertEqual(answer.headers["Content-Length"], "300000")
            self.assertEqual((len(answer.raw.read(100_000)), len(answer.raw.read1(10))), (100_000, 10))
            self.assertEqual({len(piece) for piece in answer.iter_content(1000)}, {1000, 990})
        self.assertEqual(requests.get(self.at("long")).headers["Content-Length"], "300000")
        with requests.get(self.at("packed"), stream=True) as answer:
            self.assertEqual(gzip.decompress(answer.raw.read()), b"unpacked", "raw data stays compressed")

    def test_failures_raise_the_exceptions_of_requests(self):
        with self.assertRaises(requests.exceptions.ReadTimeout):
            requests.get(self.at(self.slow), timeout=0.1)
        with self.assertRaises(requests.exceptions.ChunkedEncodingError):
            requests.get(self.at(self.truncated))
        with self.assertRaises(requests.exceptions.ChunkedEncodingError):
            with requests.get(self.at(self.truncated), stream=True) as answer:
                list(answer.iter_content(None))

    def test_other_urls_are_sent_by_requests(self):
        answer = requests.get(self.gateway.url + "/healthz")
        self.assertEqual((answer.text, answer.headers.get("X-Nearpath-Path")), ("OK", None))
        with self.assertRaises(requests.exceptions.MissingSchema):
            requests.get("no-scheme")
        with self.assertRaises(requests.ConnectionError):
            requests.get("http://127.0.0.1:9/function/x")
        self.assertIs(requests.codes, plain.codes)
        self.assertEqual(requests.__version__, plain.__version__)  # the module has all names of `requests`
