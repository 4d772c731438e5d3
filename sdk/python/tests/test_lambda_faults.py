"""Errors and modes of packages, and the code that a function runs."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

from lambda_fixture import LambdaCase, require_packages


class PackageFaultTests(unittest.TestCase):
    def setUp(self):
        require_packages()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.code = self.folder / "my code"
        self.code.mkdir()
        (self.code / "words.py").write_text("")

    def pack(self, *arguments):
        """Returns the exit code and the output."""
        from nearpath.dataflow.aws import __main__ as program

        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output), unittest.mock.patch.object(sys, "argv", ["aws", "package", *arguments]):
            code = program.main()
        return code, output.getvalue()

    def test_the_current_folder_is_packed_under_its_name(self):
        with contextlib.chdir(self.code):
            self.assertEqual(self.pack("--code", ".", "--out", "../a.zip")[0], 0)
        with zipfile.ZipFile(self.folder / "a.zip") as archive:
            self.assertIn("my code/words.py", archive.namelist())
            self.assertEqual(archive.read("nearpath-modules"), b"my code\n")

    def test_executable_files_stay_executable(self):
        tool = self.code / "tool"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o700)
        self.pack("--code", str(self.code), "--out", str(self.folder / "a.zip"))
        with zipfile.ZipFile(self.folder / "a.zip") as archive:
            modes = {name: archive.getinfo(f"my code/{name}").external_attr >> 16 & 0o777 for name in ("tool", "words.py")}
        self.assertEqual(modes, {"tool": 0o755, "words.py": 0o644})

    def test_printed_commands_are_quoted(self):
        out = self.folder / "two words.zip"
        _, output = self.pack("--code", str(self.code), "--out", str(out))
        self.assertEqual(output.count(f"fileb://'{out}'"), 2)

    def test_a_package_error_is_reported(self):
        no_wheel, link = self.folder / "bad.whl", self.code / "link"
        no_wheel.write_text("no zip")
        for arguments, cause in {
            ("--wheel", str(no_wheel)): "error: .*bad.whl is no wheel: File is not a zip",
            ("--wheel", str(self.folder / "none.whl")): "error: .*none.whl is no wheel: .*No such file",
            ("--out", "/proc/nowhere/a.zip"): "error: .*No such file or directory: '/proc/nowhere'",
        }.items():
            with self.subTest(arguments):
                code, output = self.pack("--code", str(self.code), "--out", str(self.folder / "a.zip"), *arguments)
                self.assertEqual(code, 1)
                self.assertRegex(output, cause)
        link.symlink_to("nowhere")
        code, output = self.pack("--code", str(self.code), "--out", str(self.folder / "a.zip"))
        self.assertEqual(code, 1)
        self.assertRegex(output, "^error: .*No such file or directory: '.*/my code/link'")


class PackedCodeTests(LambdaCase):
    def send(self, name, module, called, **arguments):
        code = {"module": module, "name": called, "arguments": arguments, "mark": ""}
        client = self.lambdas.client()
        answer = client.invoke(FunctionName=name, Payload=json.dumps({"version": 1, "job": "a", "worker": "map.0", "code": code}))
        client.close()
        return answer.get("FunctionError"), json.loads(answer["Payload"].read())

    def test_only_packed_modules_are_run(self):
        """Invokers do not gain the rights of the function's role."""
        from nearpath.dataflow.aws import _package

        (self.folder / "words.py").write_text("")
        zipped = _package.make(self.folder / "words.zip", [self.folder / "words.py"], _package.Target()).path
        self.lambdas.create("words", zipped)
        for module, called in ("os", "popen"), ("nearpath.dataflow", "run"), ("words2", "job"):
            with self.subTest(module):
                error, result = self.send("words", module, called, cmd="true")
                self.assertEqual((error, result["errorType"]), ("Unhandled", "PermissionError"))
                self.assertRegex(result["errorMessage"], f"^only words may be run here, not '{module}': add it with --code")
        for module in "words", "words.inner":  # without a rendezvous the worker fails
            error, result = self.send("words", module, "job")
            self.assertEqual((error, result["ended"][:9]), (None, "it failed"))


if __name__ == "__main__":
    unittest.main()
