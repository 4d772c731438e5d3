"""What workers name as their results: moved once the job is through, and nobody's but their own."""

import os
import pathlib
import tempfile
import unittest

import jobs_faults as jobs
from cases import OwnTemp
from jobs_here import numbers
from rendezvous_fixture import Rendezvous, CountedProcesses

from nearpath import dataflow as flow


class Named(OwnTemp):
    """Somebody else's file, which a worker names as what it has made."""

    def setUp(self):
        super().setUp()
        self.kept, self.place = self.folder / "kept", self.folder / "place"
        self.kept.write_text("somebody's own")

    def refused(self, job, told, **how):
        with self.assertRaisesRegex(flow.JobFailed, told) as raised:
            flow.run(job, **how)
        self.assertEqual(raised.exception.worker, "names.0")
        self.assertEqual((self.kept.read_text(), self.place.exists()), ("somebody's own", False))


class Here(Named):
    def names(self, name):
        return numbers(10) >> flow.stage(lambda: jobs.Names(name, str(self.place)), name="names")

    def test_a_file_of_its_own(self):
        flow.run(self.names(lambda folder: made(folder, "made")))
        self.assertEqual(self.place.read_text(), "made")

    def test_a_file_elsewhere(self):
        self.refused(self.names(lambda folder: str(self.kept)), f"names.0 names '{self.kept}' as what it has made, .* no file in ")

    def test_a_way_out_of_the_folder(self):
        self.refused(self.names(lambda folder: os.path.join(folder, os.path.relpath(self.kept, folder))), "names.0 names '.*/kept' ")

    def test_a_link_out_of_the_folder(self):
        self.refused(self.names(lambda folder: linked(folder, self.kept)), "names.0 names '.*/link' ")

    def test_a_folder_beside_it_with_a_name_that_begins_alike(self):
        beside = self.folder / "nearpath-jobs"
        beside.mkdir()
        self.kept = self.kept.rename(beside / "kept")
        self.refused(self.names(lambda folder: str(self.kept)), "names.0 names '.*/nearpath-jobs/kept' ", folder=str(self.folder))

    def test_the_folder_itself_and_nothing(self):
        for name in ("", "nothing"):
            with self.subTest(name):
                self.refused(self.names(lambda folder: os.path.join(folder, name)), "names.0 names '.*' .* no file in ")

    def test_what_others_have_made_stays_where_it_is(self):
        """All is looked at before anything is moved."""
        source, lines = numbers(10), self.folder / "lines"
        written = source >> flow.lines(str(lines))
        stolen = source >> flow.stage(lambda: jobs.Names(lambda folder: str(self.kept), str(self.place)), name="names")
        with self.assertRaisesRegex(flow.JobFailed, "names.0 names"):
            flow.run(written, stolen)
        self.assertFalse(lines.exists())


class There(Named):
    """A worker elsewhere has no folder of the job's: whatever it names is not its own."""

    def test_what_a_worker_here_has_made(self):
        keys = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        rendezvous = Rendezvous(keys)
        self.addCleanup(rendezvous.stop)
        arguments = {"name": str(self.folder / "nearpath-job" / "collect.0.part"), "place": str(self.place)}
        how = {"on": CountedProcesses(), "rendezvous": rendezvous.url, "key": rendezvous.key, "patience": 20.0}
        told = "names.0 names '.*/collect.0.part' as what it has made, and runs elsewhere: "
        self.refused(jobs.naming, told, arguments=arguments, folder=str(self.folder), **how)

    def test_what_collect_and_lines_keep(self):
        """It is said before anything runs."""
        for kept in (flow.collect(), flow.lines("lines")):
            self.assertEqual(kept.on("here").where, "here")
            with self.assertRaisesRegex(ValueError, "keeps what it gets where the job is run"):
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
