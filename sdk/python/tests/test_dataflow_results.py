"""A worker's named result is moved after the job, and only the worker's own file."""

import os
import pathlib
import tempfile
import unittest

import jobs_faults as jobs
from cases import TemporaryFolderCase
from jobs_local import numbers
from rendezvous_fixture import Rendezvous, CountedProcesses

from nearpath import dataflow as flow


class NamedResultCase(TemporaryFolderCase):
    """A worker names another owner's file as its result."""

    def setUp(self):
        super().setUp()
        self.kept, self.place = self.folder / "kept", self.folder / "place"
        self.kept.write_text("another owner's file")

    def refused(self, job, cause, **options):
        with self.assertRaisesRegex(flow.JobFailed, cause) as raised:
            flow.run(job, **options)
        self.assertEqual(raised.exception.worker, "names.0")
        self.assertEqual((self.kept.read_text(), self.place.exists()), ("another owner's file", False))


class LocalResultTests(NamedResultCase):
    def names(self, name):
        return numbers(10) >> flow.stage(lambda: jobs.NamedResult(name, str(self.place)), name="names")

    def test_a_workers_own_file_is_moved(self):
        flow.run(self.names(lambda folder: made(folder, "made")))
        self.assertEqual(self.place.read_text(), "made")

    def test_a_file_outside_the_folder_is_refused(self):
        self.refused(self.names(lambda folder: str(self.kept)), f"names.0 names the result '{self.kept}', .* no file in ")

    def test_a_relative_path_out_of_the_folder_is_refused(self):
        self.refused(self.names(lambda folder: os.path.join(folder, os.path.relpath(self.kept, folder))), "names.0 names the result '.*/kept',")

    def test_a_link_out_of_the_folder_is_refused(self):
        self.refused(self.names(lambda folder: linked(folder, self.kept)), "names.0 names the result '.*/link',")

    def test_a_folder_with_the_same_prefix_is_refused(self):
        beside = self.folder / "nearpath-jobs"
        beside.mkdir()
        self.kept = self.kept.rename(beside / "kept")
        self.refused(self.names(lambda folder: str(self.kept)), "names.0 names the result '.*/nearpath-jobs/kept',", folder=str(self.folder))

    def test_the_folder_itself_and_a_missing_file_are_refused(self):
        for name in ("", "nothing"):
            with self.subTest(name):
                self.refused(self.names(lambda folder: os.path.join(folder, name)), "names.0 names the result '.*', .* no file in ")

    def test_no_file_is_moved_before_all_are_checked(self):
        """All results are checked before a file is moved."""
        source, lines = numbers(10), self.folder / "lines"
        written = source >> flow.lines(str(lines))
        foreign = source >> flow.stage(lambda: jobs.NamedResult(lambda folder: str(self.kept), str(self.place)), name="names")
        with self.assertRaisesRegex(flow.JobFailed, "names.0 names"):
            flow.run(written, foreign)
        self.assertFalse(lines.exists())


class RemoteResultTests(NamedResultCase):
    """A remote worker has no files in the job's folder."""

    def test_a_remote_worker_cannot_name_a_local_workers_file(self):
        keys = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        rendezvous = Rendezvous(keys)
        self.addCleanup(rendezvous.stop)
        arguments = {"name": str(self.folder / "nearpath-job" / "collect.0.part"), "place": str(self.place)}
        options = {"on": CountedProcesses(), "rendezvous": rendezvous.url, "key": rendezvous.key, "contact_timeout": 20.0}
        cause = "names.0 names the result '.*/collect.0.part', but is remote: "
        self.refused(jobs.names_result, cause, arguments=arguments, folder=str(self.folder), **options)

    def test_collect_and_lines_refuse_remote_workers(self):
        """The refusal precedes the job."""
        for kept in (flow.collect(), flow.lines("lines")):
            self.assertEqual(kept.on("here").where, "here")
            with self.assertRaisesRegex(ValueError, "keeps its results where the job is run"):
                kept.on("there")


def made(folder, text):
    path = pathlib.Path(folder, "own")
    path.write_text(text)
    return str(path)


def linked(folder, other):
    path = pathlib.Path(folder, "link")
    path.symlink_to(other)
    return str(path)


if __name__ == "__main__":
    unittest.main()
