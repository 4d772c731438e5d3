"""Messages about a failing gateway, which never contain passwords and secrets."""

import contextlib
import http.client
import http.server
import io
import json
import signal
import socket
import threading
import time
import unittest
import unittest.mock

from fixtures import DEADLINE

from nearpath import dataflow as flow
from nearpath.dataflow import _gateway


class Gateway(http.server.ThreadingHTTPServer):
    """Describes any function, and responds as configured."""

    daemon_threads = True

    def __init__(self, **variables):
        super().__init__(("127.0.0.1", 0), Handler)
        self.description, self.call_response, self.requests, self.variables = (200, None), (200, b""), [], variables
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()

    def url(self, credentials=""):
        return f"http://{credentials}127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append((self.path, self.headers))
        status, body = self.server.description
        self.answer(status, json.dumps({"envVars": self.server.variables}).encode() if body is None else body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers))
        self.answer(*self.server.call_response)

    def answer(self, status, body):
        if status is None:
            return self.send_partial_head()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def send_partial_head(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")

    def log_message(self, *_):
        pass


class FakeGatewayCase(unittest.TestCase):
    def setUp(self):
        signal.alarm(DEADLINE)
        self.addCleanup(signal.alarm, 0)
        self.gateway = Gateway()
        self.addCleanup(self.gateway.close)

    def place(self, name="words", credentials="", **options):
        place = flow.Functions(self.gateway.url(credentials), name, start_timeout=0.5, **options)
        self.addCleanup(place.close)
        return place

    def ended(self, place):
        started = place.start("map.0", b"{}")
        while started.ended() is None:  # within the test's deadline
            time.sleep(0.01)
        return started.ended()


class SecretTests(FakeGatewayCase):
    def captured_output(self, action):
        """Returns the printed output and error of an action."""
        seen = io.StringIO()
        with contextlib.redirect_stderr(seen):
            try:
                action()
            except Exception as error:
                print(error, file=seen)
        return seen.getvalue()

    def test_a_password_in_a_url_is_never_printed(self):
        for status in (401, 404, 429, 500, None):
            with self.subTest(status):
                self.gateway.description = status, b""
                output = self.captured_output(lambda: self.place(credentials="admin:hunter2@"))
                self.assertIn(self.gateway.url(), output)
                self.assertNotIn("hunter2", output)

    def test_a_quoted_password_in_a_url_is_decoded(self):
        self.place(credentials="admin:a%40b%3A@")
        _, fields = self.gateway.requests[0]
        self.assertEqual(fields["Authorization"], "Basic YWRtaW46YUBiOg==")  # admin:a@b:

    def test_a_secret_is_stripped_like_its_file(self):
        self.ended(self.place(secret="hunter2\n"))
        _, fields = self.gateway.requests[-1]
        self.assertEqual(fields["Authorization"], "Bearer hunter2")

    def test_a_secret_is_sent_as_utf8(self):
        """A function compares bytes."""
        self.ended(self.place(secret="größe€"))
        _, fields = self.gateway.requests[-1]
        self.assertEqual(fields["Authorization"].encode("latin-1"), "Bearer größe€".encode())

    def test_an_invalid_secret_is_reported_without_its_value(self):
        for secret in ("hunter2\nX-Other: 1", " "):
            with self.subTest(secret):
                output = self.captured_output(lambda: self.place(secret=secret))
                self.assertIn("invalid secret: expected one line", output)
                self.assertNotIn("hunter2", output)


class GatewayResponseTests(FakeGatewayCase):
    def test_special_characters_in_names_are_quoted(self):
        for name, path in {
            "ünï": "/system/function/%C3%BCn%C3%AF",
            "a b": "/system/function/a%20b",
            "a?b=c": "/system/function/a%3Fb%3Dc",
            "a/../info": "/system/function/a%2F?namespace=.%2Finfo",
            "a\r\nX: y": "/system/function/a%0D%0AX%3A%20y",
            "words.my space": "/system/function/words?namespace=my%20space",
        }.items():
            with self.subTest(name):
                self.gateway.requests.clear()
                place = self.place(name)
                self.assertEqual(self.gateway.requests[0][0], path)
                self.ended(place)
                self.assertTrue(self.gateway.requests[-1][0].startswith("/function/"))

    def test_a_url_without_a_port_uses_the_schemes_port(self):
        addresses = []

        def connect(address, *_):
            addresses.append(address)
            raise ConnectionRefusedError("refused")

        with unittest.mock.patch.object(socket, "create_connection", connect):
            for url in ("http://[::1]", "https://[::1]", "http://host", "https://host/base"):
                with self.subTest(url), self.assertRaisesRegex(ConnectionError, "no gateway answers"):
                    _gateway.Gateway(url).describe("words")
        self.assertEqual(addresses, [("::1", 80), ("::1", 443), ("host", 80), ("host", 443)])

    def test_a_failed_start_reports_the_response(self):
        for (status, body), why in {
            (401, b"no"): "^ConnectionError: 401 Unauthorized: no$",
            (404, b"no"): "^ConnectionError: 404 Not Found: no$",
            (500, b"x" * 5000): "^ConnectionError: 500 Internal Server Error: x{500}$",
            (429, b"later"): "^no capacity within 0.5 s and . tries; the last: 429 Too Many Requests: later$",
            (503, b""): "^no capacity within 0.5 s and . tries; the last: 503",
        }.items():
            with self.subTest(status):
                self.gateway.call_response = status, body
                self.assertRegex(self.ended(self.place()), why)


class RepeatedJobTests(FakeGatewayCase):
    def test_a_place_serves_one_job_after_the_other(self):
        """Its callback server runs only during a job."""
        self.gateway.variables["exec_timeout"] = "15m"
        place = self.place(callback="http://127.0.0.1")
        for _ in range(2):
            self.gateway.requests.clear()
            self.gateway.call_response = 202, b""
            started = place.start("map.0", b"{}")
            while not (calls := [fields for path, fields in self.gateway.requests if path.startswith("/async-function/")]):
                time.sleep(0.01)
            host, _, port = calls[0]["X-Callback-Url"].split("/")[2].partition(":")
            path = "/" + calls[0]["X-Callback-Url"].split("/", 3)[3]
            connection = http.client.HTTPConnection(host, int(port), timeout=DEADLINE)
            connection.request("POST", path, b'{"ended": 0}\n', {"X-Function-Status": "200"})
            self.assertEqual(connection.getresponse().status, 204)
            connection.close()
            while started.ended() is None:
                time.sleep(0.01)
            self.assertEqual(started.ended(), "")
            place.close()


if __name__ == "__main__":
    unittest.main()
