"""Workers on Lambda: the place, the handler and the package, on a stand-in with AWS's own clients on both sides."""

import base64
import io
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import threading
import unittest
import zipfile
from unittest import mock

from lambdas import Door, OnLambda, need, state, until, zipped

FUNCTIONS = """
import os, socket, sys

def well(event, context):
    return {"worker": event["worker"], "ended": ""}

def ill(event, context):
    print("the last word of", event["worker"])
    return {"worker": event["worker"], "ended": "it failed"}

def raises(event, context):
    raise LookupError("no such shelf")

def held(event, context):
    with socket.create_connection(("127.0.0.1", event["door"])) as line:
        line.sendall(b"here")
        line.recv(2)
    return {"worker": event["worker"], "ended": ""}

def other(event, context):
    return "hello"
"""

# The real handler, with a worker that does what its orders say.
SCRIPTED = """
import sys
from nearpath.dataflow.aws import _handler, handler

def scripted(event, context):
    _handler._command = lambda end: [sys.executable, "-c", event["script"]]
    return handler(event, context)
"""


def orders(**more):
    return json.dumps({"version": 1, "job": "count-1", "worker": "map.0", **more}).encode()


class ThePlace(OnLambda):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = zipped(cls.folder, functions=FUNCTIONS)
        for name in ("well", "ill", "raises", "other"):
            cls.lambdas.create(name, path, f"functions.{name}")
        cls.lambdas.create("brief", path, "functions.held", timeout=1)
        cls.lambdas.create("held", path, "functions.held")
        cls.lambdas.create("alone", path, "functions.held", concurrency=1)
        cls.lambdas.create("never", path, "functions.well", concurrency=0)

    def setUp(self):
        super().setUp()
        self.door = Door()
        self.addCleanup(self.door.socket.close)

    def test_limit_and_memory_are_the_functions(self):
        place = self.place("held")
        self.assertEqual((place.limit, place.memory, place.name), (30.0, 0.125, "lambda"))
        place = self.place("held", limit=7, memory=2)
        self.assertEqual((place.limit, place.memory), (7, 2))

    def test_there_is_no_such_function(self):
        with self.assertRaisesRegex(LookupError, "Function not found: .*:nobody"):
            self.place("nobody")

    def test_a_worker_ends_well(self):
        self.assertEqual(self.end(self.place("well").start("map.0", orders())), "")

    def test_how_a_worker_ended_has_the_end_of_its_log(self):
        ended = self.end(self.place("ill").start("map.0", orders()))
        self.assertEqual(ended, "it failed\n  | the last word of map.0")

    def test_an_exception_is_told(self):
        ended = self.end(self.place("raises").start("map.0", orders()))
        self.assertRegex(ended, "the function ended with LookupError: no such shelf\n  | .*raises")

    def test_a_handler_of_something_else_is_told(self):
        self.assertIn("its handler must be nearpath.dataflow.aws.handler", self.end(self.place("other").start("map.0", orders())))

    def test_a_worker_runs_until_it_has_ended(self):
        started = self.place("held").start("map.0", orders(door=self.door.port))
        line = self.door.come()
        self.assertIsNone(started.ended())
        started.stop()  # it does not end an invocation
        self.assertIsNone(started.ended())
        self.door.go(line)
        self.assertEqual(self.end(started), "")

    def test_a_function_whose_time_is_up_is_told(self):
        started = self.place("brief").start("map.0", orders(door=self.door.port))
        with self.door.come():
            self.assertRegex(self.end(started), r"Sandbox.Timedout: .*Task timed out after 1.00 seconds")

    def test_an_environment_that_dies_is_told(self):
        started = self.place("held").start("map.0", orders(door=self.door.port))
        with self.door.come():
            (busy,) = (environment for environment in self.lambdas.environments("held") if environment["busy"])
            os.kill(busy["pid"], signal.SIGKILL)
            self.assertIn("Runtime.ExitError", self.end(started))

    def test_a_start_that_is_refused_for_now_is_tried_again_and_said(self):
        place = self.place("alone")
        first = place.start("map.0", orders(door=self.door.port))
        line = self.door.come()
        with self.assertLogs("nearpath.dataflow", "WARNING") as said:
            second = place.start("map.1", orders(door=self.door.port))
            until(lambda: said.output)
            self.assertIsNone(second.ended())
            self.door.go(line)
            self.door.go(self.door.come())
            self.assertEqual((self.end(first), self.end(second)), ("", ""))
        self.assertEqual(len(said.output), 1)
        self.assertRegex(
            said.output[0], "ReservedFunctionConcurrentInvocationLimitExceeded.*have the limit raised, or use fewer workers"
        )

    def test_a_start_is_not_tried_for_ever(self):
        with self.assertLogs("nearpath.dataflow", "WARNING"):
            ended = self.end(self.place("never", patience=0.3).start("map.0", orders()))
        self.assertRegex(ended, r"Lambda does not start it, asked [2-9] times in 0 s: TooManyRequestsException: Rate Exceeded")

    def test_a_start_that_waits_can_be_stopped(self):
        with self.assertLogs("nearpath.dataflow", "WARNING") as said:
            started = self.place("never").start("map.0", orders())
            until(lambda: said.output)
            started.stop()
            self.assertEqual(self.end(started), "")

    def test_closing_ends_starts_that_wait(self):
        place = self.place("never")
        with self.assertLogs("nearpath.dataflow", "WARNING"):
            started = place.start("map.0", orders())
            place.close()
        self.assertEqual(started.ended(), "")

    def test_who_hears_nothing_more_does_not_call_the_worker_ended(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            cut = threading.Thread(target=cut_off, args=(server,))
            cut.start()
            place = self.place("held", endpoint=f"http://127.0.0.1:{server.getsockname()[1]}", limit=900, memory=1)
            started = place.start("map.0", orders())
            cut.join()
            self.assertIsNone(started.ended())
            started.stop()
            self.assertIn("nobody knows how it ended", self.end(started))

    def test_a_client_of_the_users(self):
        client = self.lambdas.client()
        self.addCleanup(client.close)
        self.assertEqual(self.end(self.place("well", client=client).start("map.0", orders())), "")

    def test_a_client_that_tries_again_or_hangs_up_is_refused(self):
        for settings, why in ({"retries": {"max_attempts": 3}}, "starts workers twice"), (
            {"read_timeout": 5},
            "hangs up after 5 s",
        ):
            client = self.lambdas.client(**settings)
            self.addCleanup(client.close)
            with self.assertRaisesRegex(ValueError, why):
                self.place("held", client=client)


def cut_off(server):
    """Reads a request, and hangs up."""
    line, _ = server.accept()
    with line:
        while b"\r\n\r\n" not in line.recv(1 << 16):
            pass


class ThePlaceWithoutLeave(OnLambda):
    arguments = ("--deny", "GetFunctionConfiguration")

    def test_the_limit_must_be_said_where_it_cannot_be_read(self):
        path = zipped(self.folder, functions=FUNCTIONS)
        self.lambdas.create("well", path, "functions.well")
        with self.assertRaisesRegex(PermissionError, "Allow lambda:GetFunctionConfiguration, or say limit="):
            self.place("well")
        place = self.place("well", limit=30)
        self.assertEqual((place.limit, place.memory), (30, None))
        self.assertEqual(self.end(place.start("map.0", orders())), "")


class TheHandler(OnLambda):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from nearpath.dataflow.aws import _package

        code = cls.folder / "functions.py"
        code.write_text(SCRIPTED)
        cls.zip = _package.make(cls.folder / "handler.zip", [code], _package.Target()).path

    def function(self, **said):
        name = self.id().rpartition(".")[2]
        self.lambdas.create(name, self.zip, "functions.scripted", **said)
        return name

    def ask(self, name, script):
        """How it ended, and what it printed."""
        client = self.lambdas.client()
        answer = client.invoke(FunctionName=name, Payload=orders(script=textwrap.dedent(script)), LogType="Tail")
        told = json.loads(answer["Payload"].read())
        client.close()
        lines = base64.b64decode(answer["LogResult"]).decode().splitlines()
        self.assertNotIn("FunctionError", answer, told)
        return told["ended"], lines[1:-2]

    def test_exit_codes_say_how_it_ended(self):
        name = self.function()
        for script, ended in (
            ("", ""),
            ("raise SystemExit(1)", "it failed"),
            ("raise SystemExit(3)", "it lost its job, or a worker that it streams with"),
            ("raise SystemExit(9)", "it ended with exit code 9"),
            ("import os; os.kill(os.getpid(), 9)", "it died of SIGKILL: 128 MB of memory may not be enough"),
        ):
            self.assertEqual(self.ask(name, script)[0], ended)
        self.assertEqual(len(self.lambdas.environments(name)), 1)

    def test_the_worker_has_its_orders_a_folder_and_the_code(self):
        ended, printed = self.ask(
            self.function(),
            """
            import json, os, sys, tempfile
            orders = json.load(sys.stdin)
            import functions, nearpath.dataflow
            open("own", "w").close()
            print(orders["worker"], os.getcwd() == tempfile.gettempdir() == os.environ["HOME"], os.path.dirname(functions.__file__))
            try:
                open("/var/task/x", "w")
            except OSError as error:
                print(error.strerror)
            """,
        )
        self.assertEqual((ended, printed), ("", ["map.0 True /var/task", "Read-only file system"]))

    def test_nothing_stays_for_the_next_worker(self):
        name = self.function()
        left = """
            import os, subprocess, sys
            os.makedirs("/tmp/left/below")
            open("/tmp/left/below/file", "w").close()
            open("/tmp/file", "w").close()
            os.symlink("/var/task", "/tmp/link")
            told, tell = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(tell, b"there")
                    os.execvp("sleep", ["sleep", "1000"])
                os._exit(0)
            os.read(told, 5)
            """
        look = "import os; print(os.listdir('/tmp') == [os.path.basename(os.getcwd())], sorted(filter(str.isdecimal, os.listdir('/proc')), key=int)[:-1])"
        _, before = self.ask(name, look)
        self.assertEqual(self.ask(name, left), ("", []))
        _, after = self.ask(name, look)
        self.assertEqual((before, len(self.lambdas.environments(name))), (after, 1))
        self.assertRegex(before[0], "^True")

    def test_a_worker_whose_time_is_up_leaves_the_environment_whole(self):
        name = self.function(timeout=3)
        ended, printed = self.ask(name, "import time; print('at work', flush=True); time.sleep(1000)")
        self.assertEqual((ended, printed), ("it was still at work when the function's time was up", ["at work"]))
        self.assertEqual(self.ask(name, "print('again')"), ("", ["again"]))
        self.assertEqual([one["invocations"] for one in self.lambdas.environments(name)], [2])

    def test_between_two_workers_the_environment_is_frozen(self):
        name = self.function()
        self.ask(name, "")
        (environment,) = self.lambdas.environments(name)
        until(lambda: state(environment["pid"]) == "T")
        self.assertEqual(self.ask(name, "print('awake')"), ("", ["awake"]))

    def test_other_code_is_taken_by_new_environments(self):
        name = self.function()
        self.ask(name, "")
        client = self.lambdas.client()
        self.addCleanup(client.close)
        client.update_function_code(
            FunctionName=name, ZipFile=zipped(self.folder, functions="def scripted(event, context):\n    return 7\n").read_bytes()
        )
        self.assertEqual(client.invoke(FunctionName=name, Payload=orders())["Payload"].read(), b"7")
        self.assertEqual([one["invocations"] for one in self.lambdas.environments(name)], [1])

    def test_what_are_no_orders_is_refused(self):
        client = self.lambdas.client()
        self.addCleanup(client.close)
        answer = client.invoke(FunctionName=self.function(), Payload=b'{"script": ""}')
        self.assertIn("no orders for a worker", json.loads(answer["Payload"].read())["errorMessage"])


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
        with mock.patch.object(self.package, "DIRECT", 1000):
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
        with mock.patch.object(self.package, "UNZIPPED", 1000), self.assertRaisesRegex(
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
            _elf.wrong("x.so", _elf.Native("arm64", (2, 17), True), "arm64", (2, 34)), "x.so is for musl, and Lambda has glibc"
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


class Decisions(unittest.TestCase):
    """What needs no socket and no clock."""

    def test_waits_grow_and_end(self):
        from nearpath.dataflow.aws import _calls

        waits = _calls.Waits(20)
        made = list(iter(lambda: waits.next(draw=1), None))
        self.assertEqual(made, [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])
        self.assertEqual(_calls.Waits(20).next(draw=0), 0.1)
        self.assertEqual(_calls.Waits(20).next(asked="7", draw=0), 7)
        self.assertIsNone(_calls.Waits(20).next(asked="21"))

    def test_only_what_was_not_started_is_asked_for_again(self):
        from nearpath.dataflow.aws import _calls

        def later(code):
            return _calls.Refused.read({"Error": {"Code": code, "Message": ""}}).later

        self.assertTrue(later("TooManyRequestsException") and later("ResourceNotReadyException"))
        self.assertFalse(later("ServiceException") or later("AccessDeniedException") or later("ResourceNotFoundException"))


if __name__ == "__main__":
    unittest.main()
