"""A compromised function, which tries to reach the memory of another chain.

The request has a canary (hex, so that its bytes are in no pool of this chain), a mark to write, and the host's process ids of the
other chain's instances. The response has the result of each attempt.
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
FALSE_IDENTITY = {"domain": "shop.openfaas-fn", "endpoint": 1, "function": "second.openfaas-fn", "instance": 1}


def attempt(action):
    """Runs an action and returns its result, or the error number of a refusal."""
    try:
        return action()
    except OSError as error:
        return {"refused": error.errno}


def libc(name, *args):
    result = getattr(LIBC, name)(*args)
    if result == -1:
        raise OSError(ctypes.get_errno(), name)
    return result


def join():
    """Joins as another endpoint with a false identity. Returns the connection, the welcome and its descriptors."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect(os.environ["NEARPATH_DISPATCH"])
    connection.send(json.dumps({"hello": HELLO | FALSE_IDENTITY}).encode())
    connection.settimeout(10)
    text, fds, _, _ = socket.recv_fds(connection, 4096, 8)
    return connection, json.loads(text)["welcome"], fds


def replay(connection, fds):
    """Sends the descriptors back to the node with both identities. Returns new descriptors."""
    for message in ({"ready": {}}, {"ready": FALSE_IDENTITY}, {"welcome": FALSE_IDENTITY}):
        socket.send_fds(connection, [json.dumps(message).encode()], fds)
    connection.settimeout(0.5)
    try:
        return list(socket.recv_fds(connection, 4096, 8)[1])
    except TimeoutError:
        return []


def open_regions(fds):
    """Opens all memory regions of the descriptors for writing through /proc."""
    regions = []
    for fd in {*map(int, os.listdir("/proc/self/fd")), *fds}:
        try:
            if "memfd:" in os.readlink(f"/proc/self/fd/{fd}"):
                regions.append(os.open(f"/proc/self/fd/{fd}", os.O_RDWR))
        except OSError:
            pass
    return regions


def contains(fd, wanted):
    with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as region:
        return region.find(wanted) >= 0


def write_mark(fd, mark):
    """Writes a mark at the end of a pool, after the slots that forged descriptors name."""
    with mmap.mmap(fd, 0) as region:
        region[-4096 : -4096 + len(mark)] = mark


def access_beyond(fd):
    """Accesses the byte after a region's end, as a forged slot or offset would."""
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


def attack_process(pid):
    """Tries each access to a process by its id."""
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


def dispatch_sockets():
    folder = os.path.dirname(os.environ["NEARPATH_DISPATCH"])
    return [name for name in os.listdir(folder) if stat.S_ISSOCK(os.stat(os.path.join(folder, name)).st_mode)]


def attack(canary, mark, pids):
    connection, welcome, fds = join()
    regions = open_regions([*fds, *replay(connection, fds)])
    pool = max(regions, key=lambda fd: os.fstat(fd).st_size)
    write_mark(pool, mark)
    return {
        "welcome": welcome,
        "regions": len(regions),
        "bytes": sum(os.fstat(fd).st_size for fd in regions),
        "control": contains(pool, mark),
        "leaked": [os.readlink(f"/proc/self/fd/{fd}") for fd in regions if contains(fd, canary)],
        "beyond": access_beyond(pool),
        "strikes": {str(pid): attack_process(pid) for pid in pids},
        "doors": dispatch_sockets(),
        "bus": int(signal.SIGBUS),
    }


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"null")
        result = attack(bytes.fromhex(request["canary"]), bytes.fromhex(request["mark"]), request["pids"]) if request else {}
        text = json.dumps(result).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass


ThreadingHTTPServer(("127.0.0.1", 5000), Handler).serve_forever()
