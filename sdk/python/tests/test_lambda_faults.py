"""What a package refuses and keeps, and which code a function runs."""

import contextlib
import io
import json
import pathlib
import sys
import tempfile
import unittest
import unittest.mock
import zipfile

from lambdas import OnLambda, need


class Packages(unittest.TestCase):
    def setUp(self):
        need()
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.code = self.folder / "my code"
        self.code.mkdir()
        (self.code / "words.py").write_text("")

    def pack(self, *words):
        """The exit code, and what is printed."""
        from nearpath.dataflow.aws import __main__ as program

        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), unittest.mock.patch.object(sys, "argv", ["aws", "package", *words]):
            code = program.main()
        return code, said.getvalue()

    def test_the_folder_that_one_is_in(self):
        with contextlib.chdir(self.code):
            self.assertEqual(self.pack("--code", ".", "--out", "../a.zip")[0], 0)
        with zipfile.ZipFile(self.folder / "a.zip") as archive:
            self.assertIn("my code/words.py", archive.namelist())
            self.assertEqual(archive.read("nearpath-modules"), b"my code\n")

    def test_what_was_a_program_is_one(self):
        tool = self.code / "tool"
        tool.write_text("#!/bin/sh\n")
        tool.chmod(0o700)
        self.pack("--code", str(self.code), "--out", str(self.folder / "a.zip"))
        with zipfile.ZipFile(self.folder / "a.zip") as archive:
            modes = {name: archive.getinfo(f"my code/{name}").external_attr >> 16 & 0o777 for name in ("tool", "words.py")}
        self.assertEqual(modes, {"tool": 0o755, "words.py": 0o644})

    def test_commands_are_to_be_typed_as_they_are(self):
        out = self.folder / "two words.zip"
        _, said = self.pack("--code", str(self.code), "--out", str(out))
        self.assertEqual(said.count(f"fileb://'{out}'"), 2)

    def test_what_cannot_be_packed_is_told(self):
        no_wheel, link = self.folder / "bad.whl", self.code / "link"
        no_wheel.write_text("no zip")
        for words, why in {
            ("--wheel", str(no_wheel)): "error: .*bad.whl is no wheel: File is not a zip",
            ("--wheel", str(self.folder / "none.whl")): "error: .*none.whl is no wheel: .*No such file",
            ("--out", "/proc/nowhere/a.zip"): "error: .*No such file or directory: '/proc/nowhere'",
        }.items():
            with self.subTest(words):
                code, said = self.pack("--code", str(self.code), "--out", str(self.folder / "a.zip"), *words)
                self.assertEqual(code, 1)
                self.assertRegex(said, why)
        link.symlink_to("nowhere")
        code, said = self.pack("--code", str(self.code), "--out", str(self.folder / "a.zip"))
        self.assertEqual(code, 1)
        self.assertRegex(said, "^error: .*No such file or directory: '.*/my code/link'")


class Functions(OnLambda):
    def ask(self, name, module, called, **arguments):
        code = {"module": module, "name": called, "arguments": arguments, "mark": ""}
        client = self.lambdas.client()
        answer = client.invoke(FunctionName=name, Payload=json.dumps({"version": 1, "job": "a", "worker": "map.0", "code": code}))
        client.close()
        return answer.get("FunctionError"), json.loads(answer["Payload"].read())

    def test_only_what_was_packed_is_run(self):
        """Who may invoke the function does not have its role's rights."""
        from nearpath.dataflow.aws import _package

        (self.folder / "words.py").write_text("")
        zipped = _package.make(self.folder / "words.zip", [self.folder / "words.py"], _package.Target()).path
        self.lambdas.create("words", zipped)
        for module, called in ("os", "popen"), ("nearpath.dataflow", "run"), ("words2", "job"):
            with self.subTest(module):
                error, told = self.ask("words", module, called, cmd="true")
                self.assertEqual((error, told["errorType"]), ("Unhandled", "PermissionError"))
                self.assertRegex(told["errorMessage"], f"^only words may be run here, not '{module}': name it with --code")
        for module in "words", "words.inner":  # there is no rendezvous in these orders, so nothing comes of it
            error, told = self.ask("words", module, "job")
            self.assertEqual((error, told["ended"][:9]), (None, "it failed"))


if __name__ == "__main__":
    unittest.main()
