//! An instance with intercepted connects, whose socket the node replaces with one of its own
//! namespace.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;

use crate::fixture::{Lab, finish};
use nearpath_kernel::remote_thread;
use nearpath_kernel::seccomp::handover::{self, ListenerHandover};
use nearpath_kernel::seccomp::listener::{ConnectCall, ListenerEvent, SeccompListener};
use nearpath_kernel::sockets::lock_to_peer;
use nearpath_testkit::{need_root, skip};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits up to 30 seconds for the next call; `None` after the hangup.
fn next_call(listener: &SeccompListener) -> Option<ConnectCall> {
    let thirty_seconds = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    poll(
        &mut [PollFd::new(listener, PollFlags::IN)],
        Some(&thirty_seconds),
    )
    .unwrap();
    match listener.try_next().unwrap() {
        ListenerEvent::Call(call) => Some(call),
        ListenerEvent::HungUp => None,
        ListenerEvent::Empty => panic!("no call within 30 s"),
    }
}

fn socket_address(call: &ConnectCall) -> SocketAddrV4 {
    let mut octets = [0; 16];
    remote_thread::read_memory(call.tid, call.address_ptr, &mut octets).unwrap();
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

/// The node's calls need privileges that the seccomp list denies to an instance. The replaced
/// socket, once disconnected, reaches nothing else.
#[test]
fn a_replaced_socket_reaches_only_its_peer() {
    need_root!();
    let (host_listener, other_listener) = (
        TcpListener::bind("127.0.0.1:0").unwrap(),
        TcpListener::bind("127.0.0.1:0").unwrap(),
    );
    let lab = Lab::new();
    let mut spec = lab.python(SCRIPT);
    spec.intercept_connects = true;
    spec.environment.insert(
        "ELSEWHERE".into(),
        other_listener.local_addr().unwrap().port().to_string(),
    );
    let launched = lab.launcher.launch_instance(&spec).unwrap();
    let handover_result = handover::receive_listener(launched.listener.as_ref().unwrap());
    let ListenerHandover { listener, .. } = match handover_result {
        Ok(handover_result) => handover_result,
        Err(why) => skip!("seccomp listeners are unavailable: {why}"),
    };
    let first = next_call(&listener).unwrap();
    assert_eq!(socket_address(&first), "10.61.0.2:7".parse().unwrap());
    let warm_socket = TcpStream::connect(host_listener.local_addr().unwrap()).unwrap();
    lock_to_peer(&warm_socket).unwrap();
    listener
        .replace_socket(&first, warm_socket.as_fd(), true)
        .unwrap();
    drop(warm_socket);
    host_listener
        .accept()
        .unwrap()
        .0
        .write_all(b"hello")
        .unwrap();
    while let Some(call) = next_call(&listener) {
        listener.continue_call(&call);
    }
    let result = finish(launched);
    let lines: Vec<_> = result.out.lines().collect();
    assert_eq!(
        lines[..3],
        ["hello 127.0.0.1", "0", "TimeoutError"],
        "{result:?}"
    );
    assert!(
        ["ENETUNREACH", "ECONNREFUSED", "timeout"].contains(&lines[3]),
        "{result:?}"
    );
    other_listener.set_nonblocking(true).unwrap();
    assert!(
        other_listener.accept().is_err(),
        "a connection reached the other listener"
    );
}

/// Connects fail at once when the node is gone or never received the listener.
#[test]
fn without_the_node_connects_fail() {
    need_root!();
    let lab = Lab::new();
    let script = "import socket
try: socket.create_connection(('127.0.0.1', 9))
except OSError as e: print(e.strerror)";
    let mut spec = lab.python(script);
    spec.intercept_connects = true;
    let mut launched = lab.launcher.launch_instance(&spec).unwrap();
    drop(launched.listener.take());
    let result = finish(launched);
    assert!(
        ["Function not implemented\n", "Connection refused\n"].contains(&result.out.as_str()),
        "{result:?}"
    );
}
