"""Tests the function with TLS servers on loopback and a test authority."""

import http.client
import json
import pathlib
import sys
import tempfile
import unittest

CERTINFO = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(CERTINFO.parent))

from testing import need, standin  # noqa: E402


def setUpModule():
    global PACKAGES, authority
    PACKAGES = need.packages("certinfo")
    sys.path.insert(0, PACKAGES)
    import authority  # imported late, because it needs the function's dependency


class CertInfoTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.authority = authority.Authority(folder.name)
        cls.good = cls.server(cls.authority.issue("localhost", 30))
        environment = {"PYTHONPATH": PACKAGES, "CA_FILE": str(cls.authority.file), "TLS_PORT": str(cls.good.port)}
        cls.application = standin.StandIn(CERTINFO / "stack.yml", environment)
        cls.addClassCleanup(cls.application.stop)

    @classmethod
    def server(cls, file):
        server = authority.TlsServer(file)
        cls.addClassCleanup(server.stop)
        return server

    def ask(self, host, output=""):
        connection = http.client.HTTPConnection("127.0.0.1", self.application.server.server_port, timeout=30)
        connection.request("POST", f"/function/certinfo{output}", host)
        response = connection.getresponse()
        status, body = response.status, response.read().decode()
        connection.close()
        return status, body

    def fields(self, host):
        status, body = self.ask(host, "?output=json")
        self.assertEqual(status, 200, body)
        return json.loads(body)

    def test_the_fields_of_a_certificate_are_returned(self):
        before = self.good.connections
        fields = self.fields("localhost")
        self.assertEqual((fields["subject"], fields["issuer"]), ("CN=localhost", "CN=Test authority"))
        self.assertEqual(fields["names"], ["localhost", "127.0.0.1"])
        self.assertEqual((fields["daysLeft"], fields["trusted"], fields["reason"]), (30, True, ""))
        self.assertEqual((fields["port"], fields["protocol"]), (self.good.port, "TLSv1.3"))
        self.assertEqual((self.good.connections - before, self.good.requested_names[-1]), (1, "localhost"))

    def test_the_fields_are_returned_as_text(self):
        status, body = self.ask("localhost")
        self.assertEqual(status, 200, body)
        self.assertRegex(body, r"(?m)^subject: +CN=localhost$")
        self.assertRegex(body, r"(?m)^trusted: +yes$")
        self.assertNotIn("reason", body)

    def test_each_form_of_a_host_is_accepted(self):
        for host in ("https://localhost/path", "127.0.0.1", f"localhost:{self.good.port}", " localhost\n"):
            self.assertTrue(self.fields(host)["trusted"], host)

    def test_an_untrusted_certificate_is_shown_with_the_reason(self):
        other = authority.ec.generate_private_key(authority.ec.SECP256R1())
        for file, host, reason in [
            (self.authority.issue("localhost", -1), "localhost", "expired"),
            (self.authority.issue("example.test", 30), "localhost", "Hostname mismatch"),
            (self.authority.issue("localhost", 31, signer=other), "localhost", "signature failure"),
        ]:
            fields = self.fields(f"{host}:{self.server(file).port}")
            self.assertEqual(fields["trusted"], False, reason)
            self.assertIn(reason, fields["reason"])
        self.assertLess(self.fields(f"localhost:{self.server(self.authority.issue('localhost', -2)).port}")["daysLeft"], 0)

    def test_a_host_without_a_certificate_is_reported(self):
        self.assertEqual(self.ask(f"localhost:{standin.free_port()}")[0], 502)
        plain = standin.Server(standin.Router)
        self.addCleanup(plain.stop)
        status, body = self.ask(f"localhost:{plain.server_port}")
        self.assertEqual(status, 502)
        self.assertIn("shows no certificate", body)

    def test_an_invalid_host_is_refused(self):
        for text in ("", "a b", "localhost:0", "localhost:99999", "::1", "-" * 254):
            self.assertEqual(self.ask(text)[0], 400, text)
        self.assertEqual(self.ask("x" * 301)[0], 413)


if __name__ == "__main__":
    unittest.main()
