"""Base of checkpoint tests: known marks, and a state that is uploaded in parts."""

import unittest.mock

from cases import DeadlineCase

from nearpath.dataflow import _s3, _store

LARGE = (b"0123456789abcdef" * 65536) * 20 + b"a rest"


class KnownMarksCase(DeadlineCase):
    def setUp(self):
        super().setUp()
        # Known marks make file names predictable.
        self.marks = (f"mark{number}" for number in range(1000))
        for module in (_store, _s3):
            self.enterContext(unittest.mock.patch.object(module, "new_mark", lambda: next(self.marks)))
