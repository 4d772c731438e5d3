"""What tests of checkpoints have in common: marks that are known, and a state so large that it goes in parts."""

import unittest.mock

from cases import Alarm

from nearpath.dataflow import _s3, _store

LARGE = (b"0123456789abcdef" * 65536) * 20 + b"a rest"


class Marked(Alarm):
    def setUp(self):
        super().setUp()
        # Marks that are known, so that files are, too.
        self.marks = (f"mark{number}" for number in range(1000))
        for module in (_store, _s3):
            self.enterContext(unittest.mock.patch.object(module, "new_mark", lambda: next(self.marks)))
