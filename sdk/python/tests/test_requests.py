"""`nearpath.requests` is `requests`: beside an OpenFaaS gateway."""

import http.server
import json
import os
import pickle
import subprocess
import sys
import threading
import time
import unittest
import unittest.mock

from fixtures import DEADLINE, GatewayCase, OpenFaas, free_port, in_a_child, need_requests

need_requests()

import requests as plain

import nearpath
from nearpath import _http, _urls, requests
from requests_cases import RequestsCases


class Urls(unittest.TestCase):
    """Which URLs mean a function."""

    def test_every_form(self):
        with environment(NEARPATH_GATEWAY="http://faas:31112"):
            for url, name, path, far in (
                ("http://gateway:8080/function/echo", "echo", "/", "http://faas:31112/function/echo"),
                ("http://gateway.openfaas:8080/function/echo.dev/a/b?c=d", "echo.dev", "/a/b?c=d", None),
                ("http://faas:31112/function/echo?c=d", "echo", "/?c=d", None),
                ("nearpath://echo", "echo", "/", "http://faas:31112/function/echo"),
                ("nearpath://echo.dev/a?b", "echo.dev", "/a?b", "http://faas:31112/function/echo.dev/a?b"),
                ("http://echo/a", "echo", "/a", "http://faas:31112/function/echo/a"),
            ):
                self.assertEqual(_urls.parse_target(url)[:3], (name, path, far or url), url)
        with environment():
            self.assertEqual(_urls.parse_target("http://gateway/function/echo/").url, "http://gateway/function/echo/")
        with environment(NEARPATH_GATEWAY="https://host/faas/"):
            self.assertEqual(_urls.parse_target("https://host/faas/function/echo/a")[:2], ("echo", "/a"))
            self.assertIsNone(_urls.parse_target("https://host/function/echo"))

    def test_all_others(self):
        with environment(NEARPATH_GATEWAY="http://faas:31112"):
            for url in (
                "http://example.com/function/echo",
                "http://localhost/function/echo",
                "http://faas/function/echo",
                "https://faas:31112/function/echo",
                "http://faas:31112/async-function/echo",
                "http://gateway/",
                "http://gateway:8080/function/No_Name",
                "http://echo:80/",
                "https://echo/",
                "http://user@echo/",
                "http://[::1/",
                "ftp://echo/",
            ):
                self.assertIsNone(_urls.parse_target(url), url)

    def test_where_the_gateway_is(self):
        for words, url in (
            ({}, "http://gateway:8080"),
            ({"OPENFAAS_URL": "http://127.0.0.1:31112/", "gateway": "http://g"}, "http://127.0.0.1:31112"),
            ({"gateway": "gateway.openfaas:8080"}, "http://gateway.openfaas:8080"),
            ({"gateway_hostname": "g", "OPENFAAS_URL": "http://o"}, "http://g:8080"),
            ({"NEARPATH_GATEWAY": "http://n:1", "gateway_url": "http://u"}, "http://n:1"),
        ):
            with environment(**words):
                self.assertEqual(_urls.gateway(), url)


class environment:
    """The variables that name a gateway, and no others."""

    NAMES = ("NEARPATH_GATEWAY", "gateway_url", "gateway_hostname", "OPENFAAS_URL", "gateway")

    def __init__(self, **words):
        self.words = words

    def __enter__(self):
        self.before = {name: os.environ.pop(name, None) for name in self.NAMES}
        os.environ.update(self.words)

    def __exit__(self, *_):
        for name, value in self.before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


class BesideOpenFaas(RequestsCases, GatewayCase, unittest.TestCase):
    way, teapot, slow, cut = "http; not_nearer=caller_no_endpoint", "teapot", "slow", "cut"
    make_gateway = OpenFaas

    def at(self, path):
        return f"{self.gateway.url}/function/{path}"

    def test_connections_are_kept(self):
        count = lambda: int(requests.get(self.gateway.url + "/seen").text)
        requests.get(self.at("mirror"))
        before = count()
        for _ in range(5):
            requests.get(self.at("mirror"))
            nearpath.call("mirror")
            _http.call("mirror")
        self.assertLessEqual(count() - before, 1 + 2)  # what counts makes a connection, and so does the first of each half

    def test_cookies_stay_in_their_session(self):
        with requests.Session() as session:
            session.get(self.at("cookies"))
            self.assertEqual(session.cookies.get_dict(), {"one": "1", "two": "2"})
            self.assertIn("one=1", session.get(self.at("mirror")).json()["headers"]["Cookie"])
        self.assertNotIn("Cookie", requests.get(self.at("mirror")).json()["headers"])

    def test_proxies_of_the_environment_are_used(self):
        asked = []

        class Proxy(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with unittest.mock.patch.dict(os.environ, {"http_proxy": f"http://127.0.0.1:{server.server_port}", "no_proxy": ""}):
            for url in (self.at("mirror"), "http://far.example/"):
                self.assertEqual(requests.get(url).status_code, 204)
        server.shutdown()
        server.server_close()
        self.assertEqual(asked, [self.at("mirror"), "http://far.example/"])

    def test_a_session_is_pickled_and_keeps_what_is_mounted(self):
        session = requests.Session()
        session.mount("http://", plain.adapters.HTTPAdapter(max_retries=3))
        self.assertEqual(session.get_adapter("http://x").max_retries.total, 3)
        with pickle.loads(pickle.dumps(session)) as again:
            self.assertEqual(again.get_adapter("http://x").max_retries.total, 3)
            self.assertEqual(again.get(self.at("mirror")).status_code, 200)

    def test_a_stream(self):
        with requests.get(self.at("ticks"), stream=True) as answer:
            self.assertEqual([line for line in answer.iter_lines() if line], [b"data: 0", b"data: 1", b"data: 2"])

    def test_names_instead_of_the_gateway(self):
        for url in ("nearpath://mirror/a", "nearpath://mirror.openfaas-fn/a", "http://mirror/a"):
            answer = requests.get(url, params={"b": "c"})
            self.assertEqual((answer.json()["path"], answer.json()["query"]), ("/a", "b=c"), url)
        with self.assertRaisesRegex(requests.exceptions.InvalidURL, "names no function"):
            requests.get("nearpath://No_Name")
        with requests.Session() as session:
            prepared = requests.Request("GET", "nearpath://mirror/a").prepare()
            self.assertEqual(session.send(prepared).json()["path"], "/a")

    def test_a_later_release_may_report_names_that_are_not_known_here(self):
        for field, wanted in [
            ("shm", ("shm", None)),
            ("quic; not_nearer=no_domain", ("quic", "no_domain")),
            ("direct;not_nearer=fog", ("direct", "fog")),
            ("pigeon; not_nearer=fog", ("http", "caller_no_endpoint")),
            ("", ("http", "caller_no_endpoint")),
        ]:
            self.assertEqual(_http.reported_path(field), wanted, field)

    def test_the_calls_of_every_half(self):
        for half in (nearpath, _http):
            answer = half.call("mirror.openfaas-fn", b"x", path="/a?b", deadline=DEADLINE, headers={"traceparent": TRACE})
            told = json.loads(bytes(answer.body))
            fields = {name.lower(): value for name, value in told["headers"].items()}
            self.assertEqual((answer.path, answer.not_nearer), ("http", "caller_no_endpoint"))
            self.assertEqual((told["path"], told["query"], fields["traceparent"]), ("/a", "b", TRACE))
            self.assertTrue(fields["x-timeout"].endswith("s"), fields)
            self.assertIn("x-call-id", dict(answer.fields))
            self.assertEqual(half.call("nobody").status, 404)

    def test_a_call_for_later(self):
        for half in (nearpath, _http):
            with Callback() as callback:
                call = half.call_later("mirror", b"x", callback=callback.url, headers={"X-One": "1"})
                fields, body = callback.wait()
            self.assertEqual((fields["X-Call-Id"], fields["X-Function-Name"]), (call, "mirror"))
            self.assertEqual(json.loads(body)["body"], "x")
            with self.assertRaises(half.Error) as caught:
                half.call_later("nobody", callback=callback.url)
            self.assertEqual((caught.exception.kind, caught.exception.status), ("platform", 404))

    def test_a_child_that_was_forked(self):
        def work():
            assert requests.post(self.at("mirror"), data=b"child").json()["body"] == "child"

        requests.get(self.at("mirror"))
        self.assertEqual(in_a_child(work), 0)
        self.assertEqual(requests.post(self.at("mirror"), data=b"x").json()["body"], "x")

    def test_modules_of_requests_are_found_here(self):
        from nearpath.requests.adapters import HTTPAdapter
        from nearpath.requests.exceptions import Timeout

        self.assertIs(HTTPAdapter, plain.adapters.HTTPAdapter)
        self.assertIs(Timeout, plain.exceptions.Timeout)

    def test_a_timeout_goes_along(self):
        fields = requests.get(self.at("mirror"), timeout=7).json()["headers"]
        self.assertEqual(fields["x-timeout"], "7000ms")
        self.assertNotIn("x-timeout", requests.get(self.at("mirror")).json()["headers"])
        self.assertEqual(requests.get(self.at("mirror"), headers={"X-Timeout": "1s"}).json()["headers"]["X-Timeout"], "1s")

    def test_a_handler_hands_on_what_it_was_given(self):
        """A function that was called over HTTP calls with each of three clients."""
        code = f"""
import json, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # what is None cannot be imported
import nearpath
from nearpath import requests
def handler(request):
    far = requests.get("{self.at("mirror")}").json()["headers"]
    own = json.loads(bytes(nearpath.call("mirror").body))["headers"]
    return json.dumps([{{name.lower(): value for name, value in each.items()}} for each in (far, own)])
nearpath.serve(handler)
"""
        for half in ([], ["nearpath._nearpath"]):
            port = free_port()
            process = subprocess.Popen([sys.executable, "-c", code, *half], env={**os.environ, "PORT": str(port)})
            try:
                told = self.until_served(f"http://127.0.0.1:{port}/", {"traceparent": TRACE, "X-Timeout": "1m"})
            finally:
                process.terminate()
                process.wait(DEADLINE)
            for fields in told:
                self.assertEqual(fields["traceparent"], TRACE, half)
                left = fields["x-timeout"].removesuffix("ms").removesuffix("s")
                self.assertTrue(left.isdigit() and fields["x-timeout"] not in ("1m", "60s"), (half, fields))

    @staticmethod
    def until_served(url, fields):
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return plain.post(url, headers=fields, timeout=DEADLINE).json()
            except plain.ConnectionError:
                assert time.monotonic() < end, "it never listens"
                time.sleep(0.01)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Callback:
    """Waits for one POST."""

    def __enter__(self):
        told = self.told = []
        came = self.came = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                told.extend((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()
                came.set()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def wait(self):
        assert self.came.wait(DEADLINE), "nobody called back"
        return self.told

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    unittest.main()
