"""Workers on Lambda: the package of their function."""

import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile
from unittest import mock

from lambda_fixture import require_packages


class LambdaPackageTests(unittest.TestCase):
    def setUp(self):
        require_packages()
        from nearpath.dataflow.aws import _package

        self.package = _package
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.code = self.folder / "words.py"
        self.code.write_text(
            "from nearpath import dataflow as flow\n\ndef job():\n    return flow.source(lambda n, of: 'a b a'.split()) >> flow.collect()\n"
        )

    def make(self, name="out.zip", code=None, **options):
        target = options.pop("target", self.package.Target())
        return self.package.make(self.folder / name, code or [self.code], target, **options)

    def test_the_same_input_makes_the_same_bytes(self):
        first = self.make("a.zip").path.read_bytes()
        os.utime(self.code, (0, 0))
        self.code.chmod(0o600)
        self.assertEqual(self.make("b.zip").path.read_bytes(), first)

    def test_a_package_runs_without_other_installed_packages(self):
        with zipfile.ZipFile(self.make().path) as archive:
            archive.extractall(self.folder / "task")
        program = "import words; from nearpath import dataflow as flow; print(flow.run(words.job()).results)"
        python = [os.path.realpath(sys._base_executable), "-S", "-B", "-c", program]
        done = subprocess.run(python, env={"PYTHONPATH": str(self.folder / "task")}, capture_output=True, text=True)
        self.assertEqual((done.stdout, done.stderr), ("['a', 'b', 'a']\n", ""))

    def test_the_program_prints_the_command_that_creates_the_function(self):
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

    def test_a_package_contains_its_requirements(self):
        self.wheel("tiny", {"tiny.py": "x = 1\n"})
        names = set(zipfile.ZipFile(self.make(requirements=self.requirements_file("tiny")).path).namelist())
        self.assertLessEqual({"tiny.py", "tiny-1.0.dist-info/METADATA", "words.py", "nearpath/__init__.py"}, names)
        self.assertNotIn("tiny-1.0.dist-info/RECORD", names)

    def test_a_package_that_lambda_would_refuse_is_refused(self):
        self.wheel("nearpath", {"nearpath/__init__.py": ""})
        for options, cause in (
            ({"code": [self.folder / "nothing.py"]}, "there is no .*nothing.py"),
            ({"code": [self.code, self.code]}, "two entries are named words.py"),
            (
                {"target": self.package.Target(architecture="arm64" if os.uname().machine == "x86_64" else "x86_64")},
                "_nearpath.abi3.so is for",
            ),
            ({"requirements": self.requirements_file("missing-package")}, "pip finds no wheels for .*missing-package"),
            ({"requirements": self.requirements_file("nearpath")}, "every package has: remove it"),
        ):
            with self.assertRaisesRegex(self.package.PackageError, f"(?s){cause}"):
                self.make(**options)
        with mock.patch.object(self.package, "MAX_UNZIPPED_BYTES", 1000), self.assertRaisesRegex(
            self.package.PackageError, r"Lambda accepts 0: the largest are nearpath"
        ):
            self.make()
        with mock.patch.dict(self.package.GLIBC, {"3.13": (2, 1)}), self.assertRaisesRegex(
            self.package.PackageError, r"_nearpath.abi3.so needs glibc 2\.\d+, and this runtime has 2\.1"
        ):
            self.make()

    def test_the_requirements_of_native_code_are_found(self):
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

    def requirements_file(self, name):
        path = self.folder / f"{name}.txt"
        path.write_text(f"--no-index\n--find-links {self.folder}\n{name}\n")
        return path


if __name__ == "__main__":
    unittest.main()
