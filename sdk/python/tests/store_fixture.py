"""Base classes of job tests with checkpoints in an object store."""

import os
import tempfile
import time
import unittest.mock

import jobs_remote as jobs
from cases import TemporaryFolderCase
from lambda_fixture import LambdaCase, require_packages
from s3_server import ObjectStoreCase, Server
from fixtures import DEADLINE

from nearpath import dataflow as flow


class StoreJobCase(ObjectStoreCase):
    """Inspects the objects of the test's job. Their names begin with the test's id."""

    def objects(self):
        return [name for name in self.server.objects() if name.startswith(self.id())]

    def last_checkpoint(self):
        """Returns the number of the last complete checkpoint; 0: none."""
        # Names end in `/NUMBER/complete` (`contract/dataflow.md`).
        return max((int(name.split("/")[-2]) for name in self.objects() if name.endswith("/complete")), default=0)

    def wait_for_checkpoint(self, number, is_cancelled=lambda: False):
        while self.last_checkpoint() < number and not is_cancelled():
            time.sleep(0.02)


class LocalStoreCase(StoreJobCase, TemporaryFolderCase):
    """Runs jobs with forked workers and checks their sums."""

    seconds = 2 * DEADLINE

    def run_summing(self, count, endpoint=None, signals=(), **options):
        job = jobs.summing(count, 10, str(self.folder), 0.0005, signals)
        done = flow.run(job, **{"checkpoints": self.url(endpoint), "checkpoint_interval": 0.2, **options})
        self.assertEqual(dict(done.results), jobs.sums(count, 10))
        self.assertEqual(self.objects(), [], "a finished job leaves no objects")
        return done


class LambdaStoreCase(LambdaCase):
    """Runs workers on Lambda with access to the store."""

    @classmethod
    def setUpClass(cls):
        require_packages()
        cls.store = Server(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.addClassCleanup(cls.store.close)
        cls.enterClassContext(unittest.mock.patch.dict(os.environ, cls.store.keys))
        super().setUpClass()

    def checkpoint_url(self, name):
        return f"s3://nearpath/{name}?endpoint={self.store.endpoint}&region=us-east-1"
