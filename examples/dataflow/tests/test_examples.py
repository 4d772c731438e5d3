"""What the jobs make, against a count without a job; whoever dies."""

import collections
import os
import pathlib
import signal
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import reduce
import words

from nearpath import dataflow as flow

DEADLINE = 120


class Examples(unittest.TestCase):
    def setUp(self):
        signal.alarm(DEADLINE)
        self.addCleanup(signal.alarm, 0)

    def test_words(self):
        counted = collections.Counter(word for line in words.text(0, 1) for word in line.split())
        self.assertEqual(dict(flow.run(words.graph()).results), counted)

    def test_words_when_a_worker_is_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = os.path.join(folder, "mark")

            def split(line):
                if line == fatal and not os.path.exists(mark):
                    open(mark, "w").close()
                    os.kill(os.getpid(), signal.SIGKILL)
                return ((word, 1) for word in line.split())

            fatal = list(words.text(1, 2))[1500]
            pairs = flow.source(words.text, 2) >> flow.flat_map(split, 2)
            job = flow.run(pairs >> flow.reduce_by_key(int.__add__, 2) >> flow.collect(), every=0.05)
        self.assertEqual(len(job.report.restarts), 1)
        self.assertEqual(dict(job.results), collections.Counter(w for line in words.text(0, 1) for w in line.split()))

    def test_reduce(self):
        self.assertEqual(dict(flow.run(reduce.graph(5, 4000, 300, 3)).results), reduce.expected(5, 4000, 300))


if __name__ == "__main__":
    unittest.main()
