"""A worker's process where a place has started it: its first word, its last ones, its end, and what it leaves."""

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

from cases import Alarm, OwnTemp
from fixtures import DEADLINE

from nearpath.dataflow import Processes, Started, _temporary, elsewhere
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
    """To a rendezvous: writes down what it is asked. The job says only that it needs this worker no longer."""

    def __init__(self, *_):
        self.calls, self.may_answer = [], threading.Event()

    def send(self, to, text):
        self.calls.append("send")

    def receive(self, seconds):
        self.calls.append("receive")
        self.may_answer.wait(DEADLINE)
        return [("leader", Seal.of_job(ORDERS["key"]).close({"end": True}))]

    def close(self):
        pass


class FirstMessageTests(Alarm):
    def test_it_says_that_it_is_there_before_it_is_asked(self):
        """Nobody begins before all have been heard."""
        with unittest.mock.patch.object(elsewhere._native, "RendezvousConnection", FakeRendezvous):
            control = elsewhere.Control(elsewhere.Orders.read(json.dumps(ORDERS).encode()), None)
        control.mark_done()
        control.connection.may_answer.set()
        self.assertIsNone(control.next_plan(0))
        self.assertEqual(control.connection.calls, ["send", "receive"])


class LastOutputTests(OwnTemp):
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

    def test_what_it_has_printed_comes_out(self):
        worker = self.begin("as far as here", 1)
        self.assertEqual(worker.stderr.read(5), b"there")
        worker.terminate()
        self.assertEqual((worker.stdout.read(), worker.wait(), self.left()), (b"as far as here", 128 + signal.SIGTERM, []))

    def test_a_reader_that_stands_still_does_not_hold_it_up(self):
        worker = self.begin("x", 1 << 20)
        room = fcntl.fcntl(worker.stdout, fcntl.F_GETPIPE_SZ)
        while waiting(worker.stdout) < room:
            time.sleep(0.01)
        worker.terminate()
        self.assertEqual((worker.wait(), self.left()), (128 + signal.SIGTERM, []))


def waiting(pipe):
    """Bytes that nobody has read yet."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]


def end(process):
    """Who has ended and been waited for is nobody any more."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, signal.SIGKILL)


class Folders(OwnTemp):
    HELD = "import time; from nearpath.dataflow import _temporary as t\nwith t.folder(t.WORKER) as path: print(path, flush=True); {}"

    def held(self, then="time.sleep(1000)"):
        """A process with a folder, and where it is."""
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
        owner = subprocess.Popen([sys.executable, "-c", self.HELD.format(then)], stdout=subprocess.PIPE, text=True, env=environment)
        for last in (owner.stdout.close, owner.wait, owner.kill):
            self.addCleanup(last)
        return owner, pathlib.Path(owner.stdout.readline().strip())

    def test_it_goes_with_what_it_was_made_for(self):
        with self.assertRaises(LookupError), _temporary.folder(_temporary.WORKER) as path:
            pathlib.Path(path, "file").touch()
            raise LookupError
        self.assertEqual(self.left(), [])

    def test_the_next_one_removes_what_a_killed_process_has_left(self):
        owner, left = self.held()
        (left / "below").mkdir()
        owner.kill()
        owner.wait()
        self.assertEqual(self.left(), [left])
        with _temporary.folder(_temporary.WORKER) as own:
            self.assertEqual(self.left(), [pathlib.Path(own)])

    def test_what_somebody_uses_stays(self):
        _, other = self.held()
        with _temporary.folder(_temporary.WORKER) as own:
            _temporary.sweep(_temporary.WORKER)
            self.assertEqual(set(self.left()), {other, pathlib.Path(own)})

    def test_a_forked_child_that_leaves_takes_nothing_with_it(self):
        with _temporary.folder(_temporary.WORKER) as own:
            if not (child := os.fork()):
                _temporary.remove_all()
                os._exit(0)
            os.waitpid(child, 0)
            self.assertEqual(self.left(), [pathlib.Path(own)])

    def test_what_a_child_of_the_killed_process_uses_stays(self):
        owner, left = self.held("import os; os.write(1, b'%d\\n' % os.fork()); time.sleep(1000)")
        child = os.pidfd_open(int(owner.stdout.readline()) or int(owner.stdout.readline()))
        self.addCleanup(os.close, child)
        self.addCleanup(end, child)
        owner.kill()
        owner.wait()
        _temporary.sweep(_temporary.WORKER)
        self.assertEqual(self.left(), [left])
        end(child)
        select.select([child], [], [])  # readable once it has ended
        _temporary.sweep(_temporary.WORKER)
        self.assertEqual(self.left(), [])

    def test_other_things_of_that_name_stay(self):
        """A file, and a link to a folder of somebody's."""
        somebodys = self.folder / "somebodys"
        somebodys.mkdir()
        (self.temp / f"{_temporary.WORKER}file").touch()
        (self.temp / f"{_temporary.WORKER}link").symlink_to(somebodys)
        _temporary.sweep(_temporary.WORKER)
        self.assertEqual((len(self.left()), somebodys.is_dir()), (2, True))

    def test_many_at_once(self):
        """Each has its own, and nobody takes another's for one that was left."""
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
        self.assertEqual((lost, self.left()), ([], []))


class Ends(OwnTemp):
    """Who waits for a worker's end hears of it, and waits no longer than it was asked to."""

    def process(self, script):
        code = {"module": "json", "name": "loads", "arguments": {}}
        place = Processes(lambda worker: ["sh", "-c", script])
        started = place.start("map.0", json.dumps({"code": code}).encode())
        self.addCleanup(started.stop)
        return started

    def test_of_a_process(self):
        self.assertEqual(self.process("sleep 0.3; exit 7").wait(DEADLINE), "exit code 7")
        self.assertEqual(self.process("sleep 0.3; kill -9 $$").wait(DEADLINE), "signal 9")
        well = self.process("exit 0")
        self.assertEqual((well.wait(DEADLINE), well.wait(DEADLINE)), ("", ""))

    def test_of_a_process_that_goes_on(self):
        started = self.process("read line; read line")
        self.assertIsNone(started.wait(0.0))
        self.assertIsNone(started.wait(0.01))
        started.stop()
        self.assertEqual(started.wait(DEADLINE), "signal 9")

    def test_of_a_request(self):
        """One that finds no gateway, and is given up."""
        gateway = unittest.mock.Mock()
        gateway.connect.side_effect = ConnectionRefusedError
        request = Request(gateway, "workers", b"", DEADLINE, None, None, None)
        self.assertIsNone(request.wait(0.0))
        thread = threading.Thread(target=request.run)
        thread.start()
        request.stop()
        self.assertEqual(request.wait(DEADLINE), STOPPED)
        thread.join()

    def test_at_a_place_that_is_not_told_of_ends(self):
        class Third(Started):
            looks = 0

            def ended(self):
                self.looks += 1
                return "well" if self.looks > 3 else None

            def stop(self):
                pass

        self.assertEqual(Third().wait(DEADLINE), "well")
        self.assertIsNone(Third().wait(0.0))


if __name__ == "__main__":
    unittest.main()
