"""A worker's process at a place: its first message, its last output, its end and its folder."""

import contextlib
import fcntl
import json
import os
import pathlib
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import unittest
import unittest.mock

from cases import DeadlineCase, TemporaryFolderCase
from fixtures import DEADLINE

from nearpath.dataflow import Processes, Started, _temporary, remote_worker
from nearpath.dataflow._exit_cause import PERHAPS_MEMORY
from nearpath.dataflow._request import STOPPED, Request
from nearpath.dataflow._sealed import Seal

ORDERS = {
    "version": 1,
    "job": "count-1",
    "worker": "map.0",
    "key": "07" * 32,
    "code": {"module": "jobs", "name": "job", "arguments": {}, "mark": ""},
    "rendezvous": {"place": "", "ticket": ""},
    "leader": "leader",
    "contact_timeout": 60.0,
    "repeat": 1.0,
}


class FakeRendezvous:
    """Replaces a rendezvous connection. Records calls, and receives the end message only."""

    def __init__(self, *_):
        self.calls, self.may_receive = [], threading.Event()

    def send(self, to, text):
        self.calls.append("send")

    def receive(self, seconds):
        self.calls.append("receive")
        self.may_receive.wait(DEADLINE)
        return [("leader", Seal.of_job(ORDERS["key"]).close({"end": True}))]

    def close(self):
        pass


class FirstMessageTests(DeadlineCase):
    def test_a_worker_reports_before_it_receives(self):
        """No worker begins before all have reported."""
        with unittest.mock.patch.object(remote_worker._native, "RendezvousConnection", FakeRendezvous):
            control = remote_worker.Control(remote_worker.Orders.read(json.dumps(ORDERS).encode()), None)
        control.mark_done()
        control.connection.may_receive.set()
        self.assertIsNone(control.next_plan(0))
        self.assertEqual(control.connection.calls, ["send", "receive"])


class LastOutputTests(TemporaryFolderCase):
    PROGRAM = """if True:
        import sys, threading
        from nearpath.dataflow import __main__ as main, _temporary

        def work():
            print(sys.argv[1] * int(sys.argv[2]), end="")
            print("there", end="", file=sys.stderr, flush=True)

        main.handle_sigterm()
        with _temporary.folder(_temporary.WORKER):
            threading.Thread(target=work).start()
            threading.Event().wait()
    """

    def begin(self, word, count):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        environment.pop("PYTHONUNBUFFERED", None)
        command = [sys.executable, "-c", self.PROGRAM, word, str(count)]
        worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for last in (worker.stdout.close, worker.stderr.close, worker.wait, worker.kill):
            self.addCleanup(last)
        return worker

    def test_printed_output_is_flushed_before_the_exit(self):
        worker = self.begin("printed before the end", 1)
        self.assertEqual(worker.stderr.read(5), b"there")
        worker.terminate()
        self.assertEqual((worker.stdout.read(), worker.wait(), self.remaining_files()), (b"printed before the end", 128 + signal.SIGTERM, []))

    def test_a_blocked_reader_does_not_delay_the_exit(self):
        worker = self.begin("x", 1 << 20)
        room = fcntl.fcntl(worker.stdout, fcntl.F_GETPIPE_SZ)
        while unread_bytes(worker.stdout) < room:
            time.sleep(0.01)
        worker.terminate()
        self.assertEqual((worker.wait(), self.remaining_files()), (128 + signal.SIGTERM, []))


def unread_bytes(pipe):
    """Returns the number of unread bytes in a pipe."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]


def kill(process):
    """Kills a process, unless it has been reaped."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)


class TemporaryFolderTests(TemporaryFolderCase):
    HELD = "import time; from nearpath.dataflow import _temporary as t\nwith t.folder(t.WORKER) as path: print(path, flush=True); {}"

    def held(self, then="time.sleep(1000)"):
        """Starts a process with a folder. Returns both."""
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        owner = subprocess.Popen([sys.executable, "-c", self.HELD.format(then)], stdout=subprocess.PIPE, text=True, env=environment)
        for last in (owner.stdout.close, owner.wait, owner.kill):
            self.addCleanup(last)
        return owner, pathlib.Path(owner.stdout.readline().strip())

    def test_a_folder_is_removed_with_its_context(self):
        with self.assertRaises(LookupError), _temporary.folder(_temporary.WORKER) as path:
            pathlib.Path(path, "file").touch()
            raise LookupError
        self.assertEqual(self.remaining_files(), [])

    def test_the_next_folder_removes_that_of_a_killed_process(self):
        owner, left = self.held()
        (left / "below").mkdir()
        owner.kill()
        owner.wait()
        self.assertEqual(self.remaining_files(), [left])
        with _temporary.folder(_temporary.WORKER) as own:
            self.assertEqual(self.remaining_files(), [pathlib.Path(own)])

    def test_a_folder_in_use_stays(self):
        _, other = self.held()
        with _temporary.folder(_temporary.WORKER) as own:
            _temporary.sweep(_temporary.WORKER)
            self.assertEqual(set(self.remaining_files()), {other, pathlib.Path(own)})

    def test_an_exiting_forked_child_removes_nothing(self):
        with _temporary.folder(_temporary.WORKER) as own:
            if not (child := os.fork()):
                _temporary.remove_all()
                os._exit(0)
            os.waitpid(child, 0)
            self.assertEqual(self.remaining_files(), [pathlib.Path(own)])

    def test_a_folder_used_by_a_child_of_a_killed_process_stays(self):
        owner, left = self.held("import os; os.write(1, b'%d\\n' % os.fork()); time.sleep(1000)")
        child = os.pidfd_open(int(owner.stdout.readline()) or int(owner.stdout.readline()))
        self.addCleanup(os.close, child)
        self.addCleanup(kill, child)
        owner.kill()
        owner.wait()
        _temporary.sweep(_temporary.WORKER)
        self.assertEqual(self.remaining_files(), [left])
        kill(child)
        select.select([child], [], [])  # readable after its end
        _temporary.sweep(_temporary.WORKER)
        self.assertEqual(self.remaining_files(), [])

    def test_files_and_links_with_that_prefix_stay(self):
        """Keeps a file, and a link to another folder."""
        other_folder = self.folder / "other_folder"
        other_folder.mkdir()
        (self.temp / f"{_temporary.WORKER}file").touch()
        (self.temp / f"{_temporary.WORKER}link").symlink_to(other_folder)
        _temporary.sweep(_temporary.WORKER)
        self.assertEqual((len(self.remaining_files()), other_folder.is_dir()), (2, True))

    def test_concurrent_folders_do_not_remove_each_other(self):
        """Each context keeps its own folder."""
        lost = []

        def use():
            for _ in range(50):
                with _temporary.folder(_temporary.WORKER) as path:
                    lost.extend([] if os.path.isdir(path) else [path])

        users = [threading.Thread(target=use) for _ in range(4)]
        for user in users:
            user.start()
        for user in users:
            user.join()
        self.assertEqual((lost, self.remaining_files()), ([], []))


class WorkerEndTests(TemporaryFolderCase):
    """`wait` returns at the end of a worker or after its timeout."""

    def process(self, script):
        code = {"module": "json", "name": "loads", "arguments": {}}
        place = Processes(lambda worker: ["sh", "-c", script])
        started = place.start("map.0", json.dumps({"code": code}).encode())
        self.addCleanup(started.stop)
        return started

    def test_wait_returns_the_end_of_a_process(self):
        self.assertEqual(self.process("sleep 0.3; exit 7").wait(DEADLINE), "exit code 7")
        self.assertEqual(self.process("sleep 0.3; kill -9 $$").wait(DEADLINE), PERHAPS_MEMORY)
        well = self.process("exit 0")
        self.assertEqual((well.wait(DEADLINE), well.wait(DEADLINE)), ("", ""))

    def test_wait_returns_none_for_a_running_process(self):
        started = self.process("read line; exec sleep 100")
        self.assertIsNone(started.wait(0.0))
        self.assertIsNone(started.wait(0.01))
        started.stop()
        self.assertEqual(started.wait(DEADLINE), PERHAPS_MEMORY)

    def test_wait_returns_the_end_of_a_stopped_request(self):
        """The request finds no gateway and is stopped."""
        gateway = unittest.mock.Mock()
        gateway.connect.side_effect = ConnectionRefusedError
        request = Request(gateway, "workers", b"", DEADLINE, None, None, None)
        self.assertIsNone(request.wait(0.0))
        thread = threading.Thread(target=request.run)
        thread.start()
        request.stop()
        self.assertEqual(request.wait(DEADLINE), STOPPED)
        thread.join()

    def test_wait_polls_a_place_without_notification(self):
        class EndsAtFourthPoll(Started):
            polls = 0

            def ended(self):
                self.polls += 1
                return "well" if self.polls > 3 else None

            def stop(self):
                pass

        self.assertEqual(EndsAtFourthPoll().wait(DEADLINE), "well")
        self.assertIsNone(EndsAtFourthPoll().wait(0.0))


if __name__ == "__main__":
    unittest.main()
