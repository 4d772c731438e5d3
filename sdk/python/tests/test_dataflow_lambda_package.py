"""Workers on Lambda: the package that their function is made of."""

import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

from lambdas import need


class ThePackage(unittest.TestCase):
    def setUp(self):
        need()
        from nearpath.dataflow.aws import _package

        self.package = _package
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.code = self.folder / "words.py"
        self.code.write_text(
            "from nearpath import dataflow as flow\n\ndef job():\n    return flow.source(lambda n, of: 'a b a'.split()) >> flow.collect()\n"
        )

    def make(self, name="out.zip", code=None, **said):
        target = said.pop("target", self.package.Target())
        return self.package.make(self.folder / name, code or [self.code], target, **said)

    def test_the_same_input_makes_the_same_bytes(self):
        first = self.make("a.zip").path.read_bytes()
        os.utime(self.code, (0, 0))
        self.code.chmod(0o600)
        self.assertEqual(self.make("b.zip").path.read_bytes(), first)

    def test_it_runs_with_nothing_else_installed(self):
        with zipfile.ZipFile(self.make().path) as archive:
            archive.extractall(self.folder / "task")
        program = "import words; from nearpath import dataflow as flow; print(flow.run(words.job()).results)"
        python = [os.path.realpath(sys._base_executable), "-S", "-B", "-c", program]
        done = subprocess.run(python, env={"PYTHONPATH": str(self.folder / "task")}, capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("['a', 'b', 'a']\n", ""))

    def test_a_function_is_made_as_the_program_says(self):
        program = [
            sys.executable,
            "-m",
            "nearpath.dataflow.aws",
            "package",
            "--code",
            str(self.code),
            "--out",
            str(self.folder / "words.zip"),
        ]
        done = subprocess.run(program, capture_output=True, text=True, check=True)
        self.assertIn("aws lambda create-function --function-name words --runtime python3.13", done.stdout)
        self.assertIn("--handler nearpath.dataflow.aws.handler --timeout 900", done.stdout)
        self.assertIn(f"fileb://{self.folder / 'words.zip'}", done.stdout)
        with mock.patch.object(self.package, "MAX_DIRECT_BYTES", 1000):
            from nearpath.dataflow.aws import __main__ as main

            advice = main.advice(self.make(), self.package.Target())
        self.assertIn("--code S3Bucket=BUCKET,S3Key=out.zip", advice)
        self.assertIn("--s3-bucket BUCKET --s3-key out.zip", advice)

    def test_requirements_are_in_it(self):
        self.wheel("tiny", {"tiny.py": "x = 1\n"})
        names = set(zipfile.ZipFile(self.make(requirements=self.asking("tiny")).path).namelist())
        self.assertLessEqual({"tiny.py", "tiny-1.0.dist-info/METADATA", "words.py", "nearpath/__init__.py"}, names)
        self.assertNotIn("tiny-1.0.dist-info/RECORD", names)

    def test_what_lambda_would_not_take_is_refused(self):
        self.wheel("nearpath", {"nearpath/__init__.py": ""})
        for said, why in (
            ({"code": [self.folder / "nothing.py"]}, "there is no .*nothing.py"),
            ({"code": [self.code, self.code]}, "two things are called words.py"),
            (
                {"target": self.package.Target(architecture="arm64" if os.uname().machine == "x86_64" else "x86_64")},
                "_nearpath.abi3.so is for",
            ),
            ({"requirements": self.asking("nobody")}, "pip finds no wheels for .*nobody"),
            ({"requirements": self.asking("nearpath")}, "every package has: leave it out"),
        ):
            with self.assertRaisesRegex(self.package.PackageError, f"(?s){why}"):
                self.make(**said)
        with mock.patch.object(self.package, "MAX_UNZIPPED_BYTES", 1000), self.assertRaisesRegex(
            self.package.PackageError, r"Lambda takes 0: the largest are nearpath"
        ):
            self.make()
        with mock.patch.dict(self.package.GLIBC, {"3.13": (2, 1)}), self.assertRaisesRegex(
            self.package.PackageError, r"_nearpath.abi3.so needs glibc 2\.\d+, and this runtime has 2\.1"
        ):
            self.make()

    def test_what_native_code_needs(self):
        from nearpath.dataflow.aws import _elf

        with open(sys.executable, "rb") as python:
            native = _elf.read(python)
        newest = tuple(map(int, os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")))
        self.assertEqual(native.machine, {"x86_64": "x86_64", "aarch64": "arm64"}[os.uname().machine])
        self.assertTrue((2, 0) < native.glibc <= newest, native)
        self.assertIsNone(_elf.read(io.BytesIO(b"#!/bin/sh")))
        self.assertEqual(
            _elf.find_mismatch("x.so", _elf.Native("arm64", (2, 17), True), "arm64", (2, 34)), "x.so is for musl, and Lambda has glibc"
        )

    def wheel(self, name, files):
        about = {f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
        about[f"{name}-1.0.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        files = {**files, **about}
        with zipfile.ZipFile(self.folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
            for path, text in files.items():
                archive.writestr(path, text)
            archive.writestr(
                f"{name}-1.0.dist-info/RECORD", "".join(f"{path},,\n" for path in [*files, f"{name}-1.0.dist-info/RECORD"])
            )

    def asking(self, name):
        path = self.folder / f"{name}.txt"
        path.write_text(f"--no-index\n--find-links {self.folder}\n{name}\n")
        return path


if __name__ == "__main__":
    unittest.main()
