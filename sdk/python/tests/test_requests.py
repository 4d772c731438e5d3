"""`nearpath.requests` with an OpenFaaS gateway."""

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

from fixtures import DEADLINE, GatewayCase, OpenFaasGateway, free_port, run_in_child, require_requests

require_requests()

import requests as plain

import nearpath
from nearpath import _http, _urls, requests
from requests_cases import RequestsCases


class UrlTests(unittest.TestCase):
    """URLs that name functions."""

    def test_each_url_form_names_its_function(self):
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

    def test_other_urls_name_no_function(self):
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

    def test_the_environment_names_the_gateway(self):
        for variables, url in (
            ({}, "http://gateway:8080"),
            ({"OPENFAAS_URL": "http://127.0.0.1:31112/", "gateway": "http://g"}, "http://127.0.0.1:31112"),
            ({"gateway": "gateway.openfaas:8080"}, "http://gateway.openfaas:8080"),
            ({"gateway_hostname": "g", "OPENFAAS_URL": "http://o"}, "http://g:8080"),
            ({"NEARPATH_GATEWAY": "http://n:1", "gateway_url": "http://u"}, "http://n:1"),
        ):
            with environment(**variables):
                self.assertEqual(_urls.gateway(), url)


class environment:
    """Sets the variables that name a gateway, and removes others."""

    NAMES = ("NEARPATH_GATEWAY", "gateway_url", "gateway_hostname", "OPENFAAS_URL", "gateway")

    def __init__(self, **variables):
        self.variables = variables

    def __enter__(self):
        self.before = {name: os.environ.pop(name, None) for name in self.NAMES}
        os.environ.update(self.variables)

    def __exit__(self, *_):
        for name, value in self.before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


class OpenFaasRequestTests(RequestsCases, GatewayCase, unittest.TestCase):
    path, teapot, slow, truncated = "http; obstacle=caller_no_endpoint", "teapot", "slow", "truncated"
    make_gateway = OpenFaasGateway

    def at(self, path):
        return f"{self.gateway.url}/function/{path}"

    def test_connections_are_reused(self):
        count = lambda: int(requests.get(self.gateway.url + "/seen").text)
        requests.get(self.at("mirror"))
        before = count()
        for _ in range(5):
            requests.get(self.at("mirror"))
            nearpath.call("mirror")
            _http.call("mirror")
        self.assertLessEqual(count() - before, 1 + 2)  # one for the count, and one for each module

    def test_cookies_stay_in_their_session(self):
        with requests.Session() as session:
            session.get(self.at("cookies"))
            self.assertEqual(session.cookies.get_dict(), {"one": "1", "two": "2"})
            self.assertIn("one=1", session.get(self.at("mirror")).json()["headers"]["Cookie"])
        self.assertNotIn("Cookie", requests.get(self.at("mirror")).json()["headers"])

    def test_proxies_of_the_environment_are_used(self):
        urls = []

        class Proxy(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                urls.append(self.path)
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
        self.assertEqual(urls, [self.at("mirror"), "http://far.example/"])

    def test_a_pickled_session_keeps_its_adapters(self):
        session = requests.Session()
        session.mount("http://", plain.adapters.HTTPAdapter(max_retries=3))
        self.assertEqual(session.get_adapter("http://x").max_retries.total, 3)
        with pickle.loads(pickle.dumps(session)) as again:
            self.assertEqual(again.get_adapter("http://x").max_retries.total, 3)
            self.assertEqual(again.get(self.at("mirror")).status_code, 200)

    def test_a_streamed_response_is_read_line_by_line(self):
        with requests.get(self.at("ticks"), stream=True) as answer:
            self.assertEqual([line for line in answer.iter_lines() if line], [b"data: 0", b"data: 1", b"data: 2"])

    def test_a_function_name_is_accepted_as_host(self):
        for url in ("nearpath://mirror/a", "nearpath://mirror.openfaas-fn/a", "http://mirror/a"):
            answer = requests.get(url, params={"b": "c"})
            self.assertEqual((answer.json()["path"], answer.json()["query"]), ("/a", "b=c"), url)
        with self.assertRaisesRegex(requests.exceptions.InvalidURL, "names no function"):
            requests.get("nearpath://No_Name")
        with requests.Session() as session:
            prepared = requests.Request("GET", "nearpath://mirror/a").prepare()
            self.assertEqual(session.send(prepared).json()["path"], "/a")

    def test_unknown_path_names_are_accepted(self):
        for field, wanted in [
            ("shm", ("shm", None)),
            ("quic; obstacle=no_domain", ("quic", "no_domain")),
            ("direct;obstacle=fog", ("direct", "fog")),
            ("pigeon; obstacle=fog", ("http", "caller_no_endpoint")),
            ("", ("http", "caller_no_endpoint")),
        ]:
            self.assertEqual(_http.reported_path(field), wanted, field)

    def test_each_module_sends_the_same_call(self):
        for half in (nearpath, _http):
            answer = half.call("mirror.openfaas-fn", b"x", path="/a?b", deadline=DEADLINE, headers={"traceparent": TRACE})
            request = json.loads(bytes(answer.body))
            fields = {name.lower(): value for name, value in request["headers"].items()}
            self.assertEqual((answer.path, answer.obstacle), ("http", "caller_no_endpoint"))
            self.assertEqual((request["path"], request["query"], fields["traceparent"]), ("/a", "b", TRACE))
            self.assertTrue(fields["x-timeout"].endswith("s"), fields)
            self.assertIn("x-call-id", dict(answer.fields))
            self.assertEqual(half.call("missing").status, 404)

    def test_a_queued_call_posts_its_response(self):
        for half in (nearpath, _http):
            with Callback() as callback:
                call = half.call_later("mirror", b"x", callback=callback.url, headers={"X-One": "1"})
                fields, body = callback.wait()
            self.assertEqual((fields["X-Call-Id"], fields["X-Function-Name"]), (call, "mirror"))
            self.assertEqual(json.loads(body)["body"], "x")
            with self.assertRaises(half.Error) as caught:
                half.call_later("missing", callback=callback.url)
            self.assertEqual((caught.exception.kind, caught.exception.status), ("platform", 404))

    def test_a_forked_child_sends_requests(self):
        def work():
            assert requests.post(self.at("mirror"), data=b"child").json()["body"] == "child"

        requests.get(self.at("mirror"))
        self.assertEqual(run_in_child(work), 0)
        self.assertEqual(requests.post(self.at("mirror"), data=b"x").json()["body"], "x")

    def test_submodules_of_requests_can_be_imported(self):
        from nearpath.requests.adapters import HTTPAdapter
        from nearpath.requests.exceptions import Timeout

        self.assertIs(HTTPAdapter, plain.adapters.HTTPAdapter)
        self.assertIs(Timeout, plain.exceptions.Timeout)

    def test_a_timeout_is_sent_as_a_header(self):
        fields = requests.get(self.at("mirror"), timeout=7).json()["headers"]
        self.assertEqual(fields["x-timeout"], "7000ms")
        self.assertNotIn("x-timeout", requests.get(self.at("mirror")).json()["headers"])
        self.assertEqual(requests.get(self.at("mirror"), headers={"X-Timeout": "1s"}).json()["headers"]["X-Timeout"], "1s")

    def test_a_handler_propagates_trace_and_deadline(self):
        """A function called over HTTP calls with each client."""
        code = f"""
import json, sys
sys.modules.update(dict.fromkeys(sys.argv[1:]))  # None prevents the import
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
                calls = self.wait_served(f"http://127.0.0.1:{port}/", {"traceparent": TRACE, "X-Timeout": "1m"})
            finally:
                process.terminate()
                process.wait(DEADLINE)
            for fields in calls:
                self.assertEqual(fields["traceparent"], TRACE, half)
                left = fields["x-timeout"].removesuffix("ms").removesuffix("s")
                self.assertTrue(left.isdigit() and fields["x-timeout"] not in ("1m", "60s"), (half, fields))

    @staticmethod
    def wait_served(url, fields):
        end = time.monotonic() + DEADLINE
        while True:
            try:
                return plain.post(url, headers=fields, timeout=DEADLINE).json()
            except plain.ConnectionError:
                assert time.monotonic() < end, "the server does not listen"
                time.sleep(0.01)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Callback:
    """Waits for one POST."""

    def __enter__(self):
        received = self.received = []
        arrived = self.arrived = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                received.extend((dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(200)
                self.end_headers()
                arrived.set()

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_port
        self.url = f"http://127.0.0.1:{self.port}/"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def wait(self):
        assert self.arrived.wait(DEADLINE), "no callback arrived"
        return self.received

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    unittest.main()
