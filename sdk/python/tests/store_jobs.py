"""Tests of jobs whose checkpoints are in an object store."""

import os
import tempfile
import time
import unittest.mock

import jobs_elsewhere as jobs
from cases import OwnTemp
from lambdas import OnLambda, need
from s3_server import ObjectStoreCase, Server
from fixtures import DEADLINE

from nearpath import dataflow as flow


class StoreJobs(ObjectStoreCase):
    """Of each test's job, what the store has."""

    def objects(self):
        return [name for name in self.server.objects() if name.startswith(self.id())]

    def completed(self):
        """The number of the last complete checkpoint."""
        return max((int(name.split("/")[-2]) for name in self.objects() if name.endswith("/complete")), default=0)

    def until(self, number, unless=lambda: False):
        while self.completed() < number and not unless():
            time.sleep(0.02)


class Here(StoreJobs, OwnTemp):
    """Workers are forked."""

    seconds = 2 * DEADLINE

    def summing(self, count, endpoint=None, hits=(), **how):
        job = jobs.summing(count, 10, str(self.folder), 0.0005, hits)
        done = flow.run(job, **{"checkpoints": self.url(endpoint), "every": 0.2, **how})
        self.assertEqual(dict(done.results), jobs.sums(count, 10))
        self.assertEqual(self.objects(), [], "a job that is through leaves nothing")
        return done


class LambdaStoreJobs(OnLambda):
    """Workers are on Lambda, whose role may write to the store."""

    @classmethod
    def setUpClass(cls):
        need()
        cls.store = Server(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.addClassCleanup(cls.store.close)
        cls.enterClassContext(unittest.mock.patch.dict(os.environ, cls.store.keys))
        super().setUpClass()

    def kept(self, name):
        return f"s3://nearpath/{name}?endpoint={self.store.endpoint}&region=us-east-1"
