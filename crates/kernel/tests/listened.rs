//! An instance whose connects are asked about, and a socket of the machine's namespace in the place of its own.
#![allow(clippy::unwrap_used)] // in the helpers, too

mod lab;

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;

use lab::{Lab, finish};
use nearpath_kernel::foreign;
use nearpath_kernel::seccomp::handover::{self, Handed};
use nearpath_kernel::seccomp::listener::{Call, Listener, Waiting};
use nearpath_kernel::sockets::lock_to_peer;
use nearpath_testkit::{need_root, skip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The next call, within half a minute; `None` when there will be none.
fn next(listener: &Listener) -> Option<Call> {
    let half_a_minute = Timespec { tv_sec: 30, tv_nsec: 0 };
    poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&half_a_minute)).unwrap();
    match listener.next().unwrap() {
        Waiting::Call(call) => Some(call),
        Waiting::Over => None,
        Waiting::Nothing => panic!("no call within 30 s"),
    }
}

fn address(call: &Call) -> SocketAddrV4 {
    let mut octets = [0; 16];
    foreign::read(call.thread, call.address, &mut octets).unwrap();
    let [_, _, high, low, a, b, c, d, ..] = octets;
    SocketAddrV4::new(Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]))
}

const SCRIPT: &str = "
import ctypes, errno, os, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
s = socket.socket()
s.settimeout(20)
s.connect(('10.61.0.2', 7))
print(s.recv(5).decode(), s.getpeername()[0], flush=True)
print(libc.connect(s.fileno(), struct.pack('H', 0), 2), flush=True)  # AF_UNSPEC: disconnected
s.settimeout(0.5)
try: s.connect(('127.0.0.1', int(os.environ['ELSEWHERE']))); print('reached another socket of the host')
except OSError as e: print(type(e).__name__)
s = socket.socket()
s.settimeout(0.5)
try: s.connect(('10.61.0.2', 7)); print('reached')
except OSError as e: print(errno.errorcode.get(e.errno, 'timeout'))
";

/// The sandbox's list forbids an instance what the node does to it; a socket of the machine's, disconnected, reaches nothing else there.
#[test]
fn a_socket_of_the_machine_in_the_place_of_its_own() {
    need_root!();
    let (host, elsewhere) = (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let lab = Lab::new();
    let mut spec = lab.python(SCRIPT);
    spec.listened = true;
    spec.environment.insert("ELSEWHERE".into(), elsewhere.local_addr().unwrap().port().to_string());
    let launched = lab.launcher.launch(&spec).unwrap();
    let handed = handover::receive(launched.listener.as_ref().unwrap());
    let Handed { listener, .. } = match handed {
        Ok(handed) => handed,
        Err(why) => skip!("no listeners here: {why}"),
    };
    let first = next(&listener).unwrap();
    assert_eq!(address(&first), "10.61.0.2:7".parse().unwrap());
    let warm = TcpStream::connect(host.local_addr().unwrap()).unwrap();
    lock_to_peer(&warm).unwrap();
    listener.replace(&first, warm.as_fd(), true).unwrap();
    drop(warm);
    host.accept().unwrap().0.write_all(b"hello").unwrap();
    while let Some(call) = next(&listener) {
        listener.pass(&call);
    }
    let ended = finish(launched);
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines[..3], ["hello 127.0.0.1", "0", "TimeoutError"], "{ended:?}");
    assert!(["ENETUNREACH", "ECONNREFUSED", "timeout"].contains(&lines[3]), "{ended:?}");
    elsewhere.set_nonblocking(true).unwrap();
    assert!(elsewhere.accept().is_err(), "somebody got through to it");
}

/// The node has gone, or never came for it: an error at once.
#[test]
fn without_the_node_connects_fail() {
    need_root!();
    let lab = Lab::new();
    let script = "import socket
try: socket.create_connection(('127.0.0.1', 9))
except OSError as e: print(e.strerror)";
    let mut spec = lab.python(script);
    spec.listened = true;
    let mut launched = lab.launcher.launch(&spec).unwrap();
    drop(launched.listener.take());
    let ended = finish(launched);
    assert!(["Function not implemented\n", "Connection refused\n"].contains(&ended.out.as_str()), "{ended:?}");
}
