"""What people see of a gateway that answers wrongly or not at all, and what they never see: passwords and secrets."""

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
    """Describes any function, and answers each call as it is told."""

    daemon_threads = True

    def __init__(self, **variables):
        super().__init__(("127.0.0.1", 0), Handler)
        self.described, self.called, self.asked, self.variables = (200, None), (200, b""), [], variables
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self):
        self.shutdown()
        self.server_close()

    def url(self, named=""):
        return f"http://{named}127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append((self.path, self.headers))
        status, body = self.server.described
        self.answer(status, json.dumps({"envVars": self.server.variables}).encode() if body is None else body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append((self.path, self.headers))
        self.answer(*self.server.called)

    def answer(self, status, body):
        if status is None:
            return self.close_in_the_middle()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def close_in_the_middle(self):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")

    def log_message(self, *_):
        pass


class Beside(unittest.TestCase):
    def setUp(self):
        signal.alarm(DEADLINE)
        self.addCleanup(signal.alarm, 0)
        self.gateway = Gateway()
        self.addCleanup(self.gateway.close)

    def place(self, name="words", named="", **how):
        place = flow.Functions(self.gateway.url(named), name, patience=0.5, **how)
        self.addCleanup(place.close)
        return place

    def ended(self, place):
        started = place.start("map.0", b"{}")
        while started.ended() is None:  # the alarm ends it
            time.sleep(0.01)
        return started.ended()


class Secrets(Beside):
    def told(self, act):
        """All that people see of it."""
        seen = io.StringIO()
        with contextlib.redirect_stderr(seen):
            try:
                act()
            except Exception as error:
                print(error, file=seen)
        return seen.getvalue()

    def test_a_password_in_an_address_is_in_no_word(self):
        for status in (401, 404, 429, 500, None):
            with self.subTest(status):
                self.gateway.described = status, b""
                said = self.told(lambda: self.place(named="admin:hunter2@"))
                self.assertIn(self.gateway.url(), said)
                self.assertNotIn("hunter2", said)

    def test_a_password_with_characters_of_an_address(self):
        self.place(named="admin:a%40b%3A@")
        _, fields = self.gateway.asked[0]
        self.assertEqual(fields["Authorization"], "Basic YWRtaW46YUBiOg==")  # admin:a@b:

    def test_a_secret_as_its_file_has_it(self):
        self.ended(self.place(secret="hunter2\n"))
        _, fields = self.gateway.asked[-1]
        self.assertEqual(fields["Authorization"], "Bearer hunter2")

    def test_a_secret_with_other_letters(self):
        """A function knows bytes."""
        self.ended(self.place(secret="größe€"))
        _, fields = self.gateway.asked[-1]
        self.assertEqual(fields["Authorization"].encode("latin-1"), "Bearer größe€".encode())

    def test_what_is_no_secret_is_told_without_it(self):
        for secret in ("hunter2\nX-Other: 1", " "):
            with self.subTest(secret):
                said = self.told(lambda: self.place(secret=secret))
                self.assertIn("a secret is one line", said)
                self.assertNotIn("hunter2", said)


class Answers(Beside):
    def test_names_with_odd_characters_are_asked_for_as_they_are(self):
        for name, path in {
            "ünï": "/system/function/%C3%BCn%C3%AF",
            "a b": "/system/function/a%20b",
            "a?b=c": "/system/function/a%3Fb%3Dc",
            "a/../info": "/system/function/a%2F?namespace=.%2Finfo",
            "a\r\nX: y": "/system/function/a%0D%0AX%3A%20y",
            "words.my space": "/system/function/words?namespace=my%20space",
        }.items():
            with self.subTest(name):
                self.gateway.asked.clear()
                place = self.place(name)
                self.assertEqual(self.gateway.asked[0][0], path)
                self.ended(place)
                self.assertTrue(self.gateway.asked[-1][0].startswith("/function/"))

    def test_an_address_without_a_port(self):
        asked = []

        def connect(address, *_):
            asked.append(address)
            raise ConnectionRefusedError("nobody")

        with unittest.mock.patch.object(socket, "create_connection", connect):
            for url in ("http://[::1]", "https://[::1]", "http://host", "https://host/base"):
                with self.subTest(url), self.assertRaisesRegex(ConnectionError, "no gateway answers"):
                    _gateway.Gateway(url).describe("words")
        self.assertEqual(asked, [("::1", 80), ("::1", 443), ("host", 80), ("host", 443)])

    def test_how_a_start_ended(self):
        for (status, body), why in {
            (401, b"no"): "^ConnectionError: 401 Unauthorized: no$",
            (404, b"no"): "^ConnectionError: 404 Not Found: no$",
            (500, b"x" * 5000): "^ConnectionError: 500 Internal Server Error: x{500}$",
            (429, b"later"): "^no room for it in 0.5 s and . tries; the last: 429 Too Many Requests: later$",
            (503, b""): "^no room for it in 0.5 s and . tries; the last: 503",
        }.items():
            with self.subTest(status):
                self.gateway.called = status, body
                self.assertRegex(self.ended(self.place()), why)


class Restart(Beside):
    def test_a_place_serves_one_job_after_the_other(self):
        """Its callbacks, too, which it hears only while a job runs."""
        self.gateway.variables["exec_timeout"] = "15m"
        place = self.place(callback="http://127.0.0.1")
        for _ in range(2):
            self.gateway.asked.clear()
            self.gateway.called = 202, b""
            started = place.start("map.0", b"{}")
            while not (calls := [fields for path, fields in self.gateway.asked if path.startswith("/async-function/")]):
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
