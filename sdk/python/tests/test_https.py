"""A gateway at an `https` URL: each caller is a process of its own, because what is trusted is read once."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from fixtures import DEADLINE, OpenFaas, need_requests, skip

need_requests()

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


class Https(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not shutil.which("openssl"):
            skip("needs openssl, which makes the gateway's certificate: apt-get install openssl")
        cls.folder = tempfile.TemporaryDirectory()
        cls.faas = OpenFaas(cls.folder.name)
        cls.authority = str(pathlib.Path(cls.folder.name) / "authority.pem")

    @classmethod
    def tearDownClass(cls):
        cls.faas.stop()
        cls.folder.cleanup()

    def told(self, half, **words):
        environment = {**os.environ, "NEARPATH_GATEWAY": self.faas.url, **words}
        done = subprocess.run([sys.executable, "-c", CALLER, half], env=environment, capture_output=True, text=True, timeout=DEADLINE)
        return done.stdout.strip() or done.stderr

    def test_one_that_is_trusted(self):
        for half in HALVES:
            trusted = {"SSL_CERT_FILE": self.authority} if half != "nearpath.requests" else {"REQUESTS_CA_BUNDLE": self.authority}
            self.assertEqual(self.told(half, **trusted), "1.07", half)

    def test_what_requests_is_told_to_trust_holds_for_calls(self):
        for half in HALVES[:2]:
            self.assertEqual(self.told(half, REQUESTS_CA_BUNDLE=self.authority), "1.07", half)

    def test_one_that_is_not(self):
        for half in HALVES:
            told = self.told(half)
            self.assertIn("SSLError" if half == "nearpath.requests" else "unsent True", told, half)
            if half != "nearpath.requests":
                self.assertIn("SSL_CERT_FILE", told)


if __name__ == "__main__":
    unittest.main()
