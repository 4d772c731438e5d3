"""A gateway at an `https` URL. Each caller is a process, because the trusted authorities are read once."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from fixtures import DEADLINE, OpenFaasGateway, require_requests, skip

require_requests()

CALLER = """
import importlib, sys
import nearpath
half = importlib.import_module(sys.argv[1])
if half.__name__ == "nearpath.requests":
    print(half.get("http://gateway:8080/function/currency").text)
else:
    try:
        print(bytes(half.call("currency").body).decode())
    except half.Error as error:
        print(error.kind, error.retry_is_safe, error)
"""
HALVES = ("nearpath", "nearpath._http", "nearpath.requests")


class HttpsTests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("openssl"):
            skip("needs openssl, which makes the gateway's certificate: apt-get install openssl")
        cls.folder = tempfile.TemporaryDirectory()
        cls.faas = OpenFaasGateway(cls.folder.name)
        cls.authority = str(pathlib.Path(cls.folder.name) / "authority.pem")

    @classmethod
    def tearDownClass(cls):
        cls.faas.stop()
        cls.folder.cleanup()

    def output_of(self, half, **variables):
        environment = {**os.environ, "NEARPATH_GATEWAY": self.faas.url, **variables}
        done = subprocess.run([sys.executable, "-c", CALLER, half], env=environment, capture_output=True, text=True, timeout=DEADLINE)
        return done.stdout.strip() or done.stderr

    def test_a_trusted_certificate_is_accepted(self):
        for half in HALVES:
            trusted = {"SSL_CERT_FILE": self.authority} if half != "nearpath.requests" else {"REQUESTS_CA_BUNDLE": self.authority}
            self.assertEqual(self.output_of(half, **trusted), "1.07", half)

    def test_the_authorities_of_requests_apply_to_calls(self):
        for half in HALVES[:2]:
            self.assertEqual(self.output_of(half, REQUESTS_CA_BUNDLE=self.authority), "1.07", half)

    def test_an_untrusted_certificate_is_refused(self):
        for half in HALVES:
            output = self.output_of(half)
            self.assertIn("SSLError" if half == "nearpath.requests" else "unsent True", output, half)
            if half != "nearpath.requests":
                self.assertIn("SSL_CERT_FILE", output)


if __name__ == "__main__":
    unittest.main()
