"""Workers on Lambda: the handler, on a test double with AWS's own runtime client."""

import base64
import json
import textwrap
import unittest

from lambda_fixture import LambdaCase, orders, process_state, wait_until, zipped


# The real handler with a worker that runs the script in its orders.
SCRIPTED = """
import sys
from nearpath.dataflow.aws import _handler, handler

def scripted(event, context):
    _handler._command = lambda end: [sys.executable, "-c", event["script"]]
    return handler(event, context)
"""


class LambdaHandlerTests(LambdaCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        from nearpath.dataflow.aws import _package

        code = cls.folder / "functions.py"
        code.write_text(SCRIPTED)
        cls.zip = _package.make(cls.folder / "handler.zip", [code], _package.Target()).path

    def function(self, **options):
        name = self.id().rpartition(".")[2]
        self.lambdas.create(name, self.zip, "functions.scripted", **options)
        return name

    def run_script(self, name, script):
        """Runs a script as a worker. Returns its end and its output."""
        client = self.lambdas.client()
        answer = client.invoke(FunctionName=name, Payload=orders(script=textwrap.dedent(script)), LogType="Tail")
        result = json.loads(answer["Payload"].read())
        client.close()
        lines = base64.b64decode(answer["LogResult"]).decode().splitlines()
        self.assertNotIn("FunctionError", answer, result)
        return result["ended"], lines[1:-2]

    def test_exit_codes_determine_the_reported_end(self):
        name = self.function()
        for script, ended in (
            ("", ""),
            ("raise SystemExit(1)", "it failed"),
            ("raise SystemExit(3)", "it lost its job or a peer"),
            ("raise SystemExit(9)", "it ended with exit code 9"),
            ("import os; os.kill(os.getpid(), 9)", "it died of SIGKILL: 128 MB of memory may not be enough"),
        ):
            self.assertEqual(self.run_script(name, script)[0], ended)
        self.assertEqual(len(self.lambdas.environments(name)), 1)

    def test_a_worker_has_its_orders_its_folder_and_the_code(self):
        ended, printed = self.run_script(
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

    def test_processes_and_files_are_removed_before_the_next_worker(self):
        name = self.function()
        left = """
            import os, subprocess, sys
            os.makedirs("/tmp/left/below")
            open("/tmp/left/below/file", "w").close()
            open("/tmp/file", "w").close()
            os.symlink("/var/task", "/tmp/link")
            reader, writer = os.pipe()
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.write(writer, b"there")
                    os.execvp("sleep", ["sleep", "1000"])
                os._exit(0)
            os.read(reader, 5)
            """
        look = "import os; print(os.listdir('/tmp') == [os.path.basename(os.getcwd())], sorted(filter(str.isdecimal, os.listdir('/proc')), key=int)[:-1])"
        _, before = self.run_script(name, look)
        self.assertEqual(self.run_script(name, left), ("", []))
        _, after = self.run_script(name, look)
        self.assertEqual((before, len(self.lambdas.environments(name))), (after, 1))
        self.assertRegex(before[0], "^True")

    def test_a_worker_timeout_keeps_the_environment_usable(self):
        name = self.function(timeout=3)
        ended, printed = self.run_script(name, "import time; print('running', flush=True); time.sleep(1000)")
        self.assertEqual((ended, printed), ("it was still running at the function's timeout", ["running"]))
        self.assertEqual(self.run_script(name, "print('again')"), ("", ["again"]))
        self.assertEqual([one["invocations"] for one in self.lambdas.environments(name)], [2])

    def test_the_environment_is_frozen_between_two_workers(self):
        name = self.function()
        self.run_script(name, "")
        (environment,) = self.lambdas.environments(name)
        wait_until(lambda: process_state(environment["pid"]) == "T")
        self.assertEqual(self.run_script(name, "print('awake')"), ("", ["awake"]))

    def test_updated_code_starts_in_new_environments(self):
        name = self.function()
        self.run_script(name, "")
        client = self.lambdas.client()
        self.addCleanup(client.close)
        client.update_function_code(
            FunctionName=name, ZipFile=zipped(self.folder, functions="def scripted(event, context):\n    return 7\n").read_bytes()
        )
        self.assertEqual(client.invoke(FunctionName=name, Payload=orders())["Payload"].read(), b"7")
        self.assertEqual([one["invocations"] for one in self.lambdas.environments(name)], [1])

    def test_an_event_without_orders_is_refused(self):
        client = self.lambdas.client()
        self.addCleanup(client.close)
        answer = client.invoke(FunctionName=self.function(), Payload=b'{"script": ""}')
        self.assertIn("no orders for a worker", json.loads(answer["Payload"].read())["errorMessage"])


if __name__ == "__main__":
    unittest.main()
