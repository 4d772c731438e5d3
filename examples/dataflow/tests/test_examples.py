"""Compares the jobs' results with a count without a job, also after deaths."""

import collections
import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

EXAMPLE = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(EXAMPLE), str(EXAMPLE.parent.parent / "sdk" / "python" / "tests")]

import reduce
import words
from rendezvous_fixture import Rendezvous, program
from nearpath_up import NearpathUp

import nearpath
from nearpath import dataflow as flow

DEADLINE = 120


class ExampleTests(unittest.TestCase):
    def setUp(self):
        signal.alarm(DEADLINE)
        self.addCleanup(signal.alarm, 0)

    def test_words_are_counted(self):
        counted = collections.Counter(word for line in words.text(0, 1) for word in line.split())
        self.assertEqual(dict(flow.run(words.graph()).results), counted)

    def test_words_are_counted_exactly_despite_a_death(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = os.path.join(folder, "mark")

            def split(line):
                if line == fatal and not os.path.exists(mark):
                    open(mark, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                return ((word, 1) for word in line.split())

            fatal = list(words.text(1, 2))[1500]
            pairs = flow.source(words.text, 2) >> flow.flat_map(split, 2)
            job = flow.run(pairs >> flow.reduce_by_key(int.__add__, 2) >> flow.collect(), checkpoint_interval=0.05)
        self.assertEqual(len(job.report.restarts), 1)
        self.assertEqual(dict(job.results), collections.Counter(w for line in words.text(0, 1) for w in line.split()))

    def test_reduce_gives_exact_sums(self):
        self.assertEqual(dict(flow.run(reduce.graph(5, 4000, 300, 3)).results), reduce.expected(5, 4000, 300))


class FunctionExampleTests(unittest.TestCase):
    """Runs the README's commands with a real `nearpath up` and a real rendezvous."""

    def setUp(self):
        signal.alarm(DEADLINE)
        self.addCleanup(signal.alarm, 0)
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder.chmod(0o755)
        self.up = NearpathUp()
        self.addCleanup(self.up.stop)
        self.rendezvous = Rendezvous(self.folder)
        self.addCleanup(self.rendezvous.stop)

    def test_words_are_counted_on_functions(self):
        example = self.folder / "dataflow"
        shutil.copytree(EXAMPLE, example, ignore=shutil.ignore_patterns("packages", "__pycache__"))
        shutil.copytree(pathlib.Path(nearpath.__file__).parent, example / "packages" / "nearpath")
        stack, port = example / "stack.yml", self.rendezvous.url.rpartition(":")[2]
        stack.write_text(stack.read_text().replace(":7843", f":{port}"))
        environment = {**os.environ, "NEARPATH_DATA_DIR": str(self.up.data), "OPENFAAS_URL": self.up.url}
        environment |= {"RENDEZVOUS": self.rendezvous.url, "RENDEZVOUS_KEY": self.rendezvous.key}
        run = functools.partial(subprocess.run, cwd=example, env=environment, check=True, stdout=subprocess.PIPE, text=True)
        run([program("nearpath"), "deploy", "-f", "stack.yml"])
        output = run([sys.executable, "words.py", "--functions", "--workers", "3"]).stdout
        self.assertEqual(output.splitlines()[:2], ["  5018 word-0", "  1325 word-1"])


if __name__ == "__main__":
    unittest.main()
