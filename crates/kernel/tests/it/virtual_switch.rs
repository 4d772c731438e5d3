//! `bpf/vip.c` over real instances: each way to reach another instance passes along declared edges only,
//! and each program is needed for that.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nearpath_kernel::bpf::{AddressEdge, SwitchNetworks, VirtualSwitch};
use nearpath_kernel::cgroup::{NodeCgroups, SocketGroup};
use nearpath_kernel::sandbox::{DestinationRoute, LaunchedInstance, SandboxSpec};
use nearpath_kernel::sockets::{ReceivedDatagram, receive_datagram};
use nearpath_testkit::need_support;
use nearpath_types::{Eip, VirtualAddress};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::fixture::{GATEWAY, Lab, finish, kill};

pub(crate) const CALLER: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 2);
pub(crate) const DECLARED: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 3);
pub(crate) const UNDECLARED: Ipv4Addr = Ipv4Addr::new(10, 60, 0, 4);

/// Answers over TCP and UDP on port 7000 with what it gets.
const SERVER: &str = "
import socket, threading
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); udp.bind(('', 7000))
def datagrams():
    while True:
        data, peer = udp.recvfrom(2000); udp.sendto(data, peer)
threading.Thread(target=datagrams, daemon=True).start()
tcp = socket.create_server(('', 7000), backlog=1000)
print('ready', flush=True)
while True:
    one, _ = tcp.accept()
    def echo(one=one):
        while data := one.recv(65536): one.sendall(data)
        one.close()
    threading.Thread(target=echo, daemon=True).start()
";

/// Prints a line for each way to each address: the way, the address, and the peer or the error.
const CLIENT: &str = "
import errno, os, socket, struct, sys
limit = struct.pack('ll', int(os.environ['LIMIT']), 0)
def limited(s):
    for option in socket.SO_RCVTIMEO, socket.SO_SNDTIMEO: s.setsockopt(socket.SOL_SOCKET, option, limit)
    return s
def tcp(address, family=socket.AF_INET, protocol=0, port=7000):
    s = limited(socket.socket(family, socket.SOCK_STREAM, protocol))
    s.connect((address, port)); s.sendall(b'x'); s.recv(1)
    return s.getpeername()[0]
def fast_open(address):
    s = limited(socket.socket())
    s.sendto(b'x', 0x20000000, (address, 7000)); s.recv(1)
    return s.getpeername()[0]
def datagram(address, family=socket.AF_INET):
    s = limited(socket.socket(family, socket.SOCK_DGRAM))
    s.sendto(b'x', (address, 7000))
    return s.recvfrom(10)[1][0]
def connected(address, family=socket.AF_INET):
    s = limited(socket.socket(family, socket.SOCK_DGRAM))
    s.connect((address, 7000)); s.send(b'x'); s.recv(10)
    return s.getpeername()[0]
six = socket.AF_INET6
ways = [
    ('tcp', tcp), ('watchdog', lambda a: tcp(a, port=8080)), ('fast-open', fast_open), ('mptcp', lambda a: tcp(a, protocol=262)),
    ('tcp-mapped', lambda a: tcp('::ffff:' + a, six)), ('udp', datagram), ('udp-connected', connected),
    ('udp-mapped', lambda a: datagram('::ffff:' + a, six)),
    ('udp-connected-mapped', lambda a: connected('::ffff:' + a, six)),
]
def attempt(name, way, address):
    try: print(name, address, way(address))
    except OSError as e: print(name, address, errno.errorcode[e.errno])
for address in os.environ['ADDRESSES'].split():
    if ':' in address:
        attempt('tcp6', lambda a: tcp(a, six), address)
        attempt('udp6-connected', lambda a: connected(a, six), address)
    else:
        for name, way in ways: attempt(name, way, address)
";

/// Outcome of each way to each address.
type Outcomes = BTreeMap<(String, String), String>;

/// A lab with a switch, whose instances belong to functions.
pub(crate) struct SwitchLab {
    // Instances before the group: it can be removed when it is empty.
    pub(crate) lab: Lab,
    pub(crate) switch: VirtualSwitch,
    _group: SocketGroup,
    cgroups: NodeCgroups,
    is_complete: bool,
}

impl SwitchLab {
    pub(crate) fn create(left_out: &[&str]) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let node = format!(
            "switch-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let cgroups = NodeCgroups::detect(&node);
        let group = SocketGroup::open(&cgroups)?;
        let lab = Lab::in_cgroup(GATEWAY, group.zygote_group());
        lab.hub.forward_packets()?;
        let switch = VirtualSwitch::attach_without(group.folder(), left_out)?;
        switch.set_networks(&networks())?;
        Ok(Self {
            lab,
            switch,
            _group: group,
            cgroups,
            is_complete: left_out.is_empty(),
        })
    }

    /// Admits an instance of a function, which gets routes to all others.
    pub(crate) fn admit(&self, mut spec: SandboxSpec, function: Ipv4Addr) -> SandboxSpec {
        let network = spec.network.as_mut().unwrap();
        network.destinations = [[10, 60, 0, 0], [10, 62, 0, 0]]
            .map(|address| DestinationRoute {
                address: address.into(),
                prefix_len: 16,
                hostname: None,
            })
            .into();
        self.switch
            .admit_instance((spec.uid, network.eip), function, false)
            .unwrap();
        spec
    }

    fn start_server(&self, function: Ipv4Addr) -> (LaunchedInstance, Eip) {
        let spec = self.admit(self.lab.python(SERVER), function);
        let (launched, line) = self.lab.start(&spec);
        assert_eq!(line, "ready");
        (launched, spec.network.unwrap().eip)
    }

    /// Runs the client of `CALLER`.
    fn try_addresses(&self, addresses: &[String]) -> Outcomes {
        let mut spec = self.lab.python(CLIENT);
        spec.environment
            .insert("ADDRESSES".into(), addresses.join(" "));
        // Only without one of the programs does an attempt reach the limit.
        let limit = if self.is_complete { "20" } else { "1" };
        spec.environment.insert("LIMIT".into(), limit.into());
        let ended = self.lab.run(&self.admit(spec, CALLER));
        assert_eq!(ended.code, Some(0), "{ended:?}");
        let parts = ended
            .out
            .lines()
            .map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        parts
            .map(|line| ((line[0].clone(), line[1].clone()), line[2].clone()))
            .collect()
    }
}

impl Drop for SwitchLab {
    fn drop(&mut self) {
        self.cgroups.remove_node_folders();
    }
}

fn networks() -> SwitchNetworks {
    SwitchNetworks {
        virtual_addresses: (CALLER, 16),
        ipv6: Some(virtual_address(CALLER).v6),
        instances: (GATEWAY, 16),
        gateway: GATEWAY,
        local_gateway: "127.0.0.2:8080".parse().unwrap(),
    }
}

pub(crate) fn virtual_address(v4: Ipv4Addr) -> VirtualAddress {
    let prefix = u128::from_be_bytes([0xfd, 1, 2, 3, 4, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let v6 = (prefix | u128::from(v4.to_bits())).into();
    VirtualAddress { v4, v6 }
}

/// Tries every way to a declared callee and to an undeclared one, by each of their addresses.
fn run_matrix(left_out: &[&str]) -> io::Result<(Outcomes, [Eip; 2])> {
    let lab = SwitchLab::create(left_out)?;
    let servers = [lab.start_server(DECLARED), lab.start_server(UNDECLARED)];
    let eips = [servers[0].1, servers[1].1];
    for (function, eip) in [DECLARED, UNDECLARED].into_iter().zip(eips) {
        lab.switch.set_backends(function, &[eip]).unwrap();
    }
    let edge = AddressEdge {
        caller: CALLER,
        callee: DECLARED,
    };
    lab.switch.add_edge(edge).unwrap();
    let addresses = [DECLARED, UNDECLARED]
        .into_iter()
        .zip(eips)
        .flat_map(|(function, eip)| {
            let VirtualAddress { v4, v6 } = virtual_address(function);
            [v4.to_string(), v6.to_string(), eip.to_string()]
        });
    let outcomes = lab.try_addresses(&addresses.collect::<Vec<_>>());
    servers
        .into_iter()
        .for_each(|(server, _)| drop(kill(server)));
    Ok((outcomes, eips))
}

/// Outcome that an attempt must have.
fn expected(way: &str, address: &str, eips: [Eip; 2]) -> String {
    let is_declared = [
        DECLARED.to_string(),
        virtual_address(DECLARED).v6.to_string(),
        eips[0].to_string(),
    ]
    .contains(&address.to_owned());
    match (way, is_declared) {
        ("mptcp", _) => "EPROTONOSUPPORT".to_owned(),
        (_, false) => "EPERM".to_owned(),
        ("watchdog", true) => "ECONNREFUSED".to_owned(),
        // Peers are those that the caller asked for.
        (way, true) if way.ends_with("mapped") => format!("::ffff:{address}"),
        (_, true) => address.to_owned(),
    }
}

fn differences((outcomes, eips): (Outcomes, [Eip; 2])) -> Vec<String> {
    assert_eq!(outcomes.len(), 4 * 9 + 2 * 2, "{outcomes:?}");
    let wrong = outcomes
        .iter()
        .filter(|((way, address), outcome)| **outcome != expected(way, address, eips));
    wrong
        .map(|((way, address), outcome)| format!("{way} {address}: {outcome}"))
        .collect()
}

#[test]
fn declared_callees_alone_are_reached_in_every_way() {
    let matrix = need_support!(run_matrix(&[]));
    assert_eq!(differences(matrix), Vec::<String>::new());
}

#[test]
fn every_program_is_needed() {
    need_support!(SwitchLab::create(&[]));
    let hooks = [
        ("connect4", "tcp"),
        ("connect6", "tcp-mapped"),
        ("sendmsg4", "udp"),
        ("recvmsg4", "udp"),
        ("recvmsg6", "udp-mapped"),
        ("getpeername4", "tcp"),
        ("getpeername6", "tcp-mapped"),
        ("sock_create", "mptcp"),
    ];
    // Side by side: they mostly wait for answers that do not come.
    thread::scope(|scope| {
        for (hook, way) in hooks {
            scope.spawn(move || {
                let wrong = differences(run_matrix(&[hook]).unwrap());
                let is_seen = wrong
                    .iter()
                    .any(|line| line.starts_with(&format!("{way} ")));
                assert!(is_seen, "without {hook}: {wrong:?}");
            });
        }
    });
}

/// Sends datagrams to the first address, connected and not, and prints the peers of their answers.
const ASK_ABSENT: &str = "
import os, socket
v4, v6 = os.environ['ADDRESSES'].split()
def ask(s, name):
    s.settimeout(20)
    if name == 'sendto': s.sendto(name.encode(), (v4, 7001))
    else: s.connect((v6 if name == 'ipv6' else v4, 7001)); s.send(name.encode())
    data, peer = s.recvfrom(100)
    s.sendto(b'again', (v4, 7001)) if name == 'sendto' else s.send(b'again')
    print(name, data.decode(), peer[0], peer[1], s.recv(100).decode())
    if name != 'sendto': print(s.getpeername()[0])
for name in 'sendto', 'connected', 'ipv6':
    ask(socket.socket(socket.AF_INET6 if name == 'ipv6' else socket.AF_INET, socket.SOCK_DGRAM), name)
";

/// Receives with a deadline.
fn receive(sockets: &[UdpSocket], buffer: &mut [u8]) -> ReceivedDatagram {
    receive_datagram(wait_readable(sockets), buffer).unwrap()
}

/// Returns the socket that has a datagram.
fn wait_readable(sockets: &[UdpSocket]) -> &UdpSocket {
    let events = sockets.iter().map(|one| PollFd::new(one, PollFlags::IN));
    let mut events: Vec<_> = events.collect();
    let limit = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    assert_eq!(poll(&mut events, Some(&limit)).unwrap(), 1, "no datagram");
    let mut both = events.iter().zip(sockets);
    let is_ready = |(event, _): &(&PollFd<'_>, _)| event.revents().contains(PollFlags::IN);
    both.find(is_ready).unwrap().1
}

#[test]
fn datagrams_without_a_ready_instance_reach_the_node_and_answers_the_caller() {
    let lab = need_support!(SwitchLab::create(&[]));
    let hub = lab.lab.hub.clone();
    let absent = lab.switch.listen_for_absent(&hub).unwrap();
    lab.switch
        .add_edge(AddressEdge {
            caller: CALLER,
            callee: DECLARED,
        })
        .unwrap();
    let VirtualAddress { v4, v6 } = virtual_address(DECLARED);
    let mut spec = lab.admit(lab.lab.python(ASK_ABSENT), CALLER);
    spec.environment
        .insert("ADDRESSES".into(), format!("{v4} {v6}"));
    let eip = spec.network.as_ref().unwrap().eip;
    let launched = lab.lab.launcher.launch_instance(&spec).unwrap();
    let mut buffer = [0; 100];
    // Kept: several sockets have the same local address.
    let mut flows = Vec::new();
    for way in ["sendto", "connected", "ipv6"] {
        let received = receive(&absent.datagrams, &mut buffer);
        assert_eq!(&buffer[..received.len], way.as_bytes());
        assert_eq!((*received.source.ip(), received.lost), (eip.0, 0));
        assert_eq!(received.destination, SocketAddrV4::new(DECLARED, 7001));
        let flow = hub
            .open_flow_socket(Some(received.destination), received.source)
            .unwrap();
        // Ready from now on: connected sockets stay with the node, which answers from their peer's address.
        let ready = [Eip([10, 62, 255, 254].into())];
        if way != "sendto" {
            lab.switch.set_backends(DECLARED, &ready).unwrap();
        }
        flow.send(b"first").unwrap();
        // Later ones come to the socket of the flow.
        let len = wait_readable(std::slice::from_ref(&flow))
            .recv(&mut buffer)
            .unwrap();
        assert_eq!(&buffer[..len], b"again");
        // Before the answer, after which the next socket connects.
        lab.switch.set_backends(DECLARED, &[]).unwrap();
        flow.send(b"second").unwrap();
        flows.push(flow);
    }
    for socket in &absent.datagrams {
        let none = receive_datagram(socket, &mut buffer).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
    }
    let ended = finish(launched);
    let expected = [
        format!("sendto first {v4} 7001 second"),
        format!("connected first {v4} 7001 second"),
        v4.to_string(),
        format!("ipv6 first {v6} 7001 second"),
        v6.to_string(),
    ];
    let lines: Vec<_> = ended.out.lines().collect();
    assert_eq!(lines, expected, "{ended:?}");
}

/// Sends more datagrams than a socket of the node keeps, and then one after another.
const FLOOD: &str = "
import os, socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(5000): s.sendto(b'x', (os.environ['ADDRESS'], 7001))
print('sent', flush=True)
while True: time.sleep(0.01); s.sendto(b'x', (os.environ['ADDRESS'], 7001))
";

const SEND_ONE: &str = "
import os, socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', (os.environ['ADDRESS'], 7001))
";

#[test]
fn a_flood_fills_its_own_queue_and_is_counted() {
    let lab = need_support!(SwitchLab::create(&[]));
    let hub = lab.lab.hub.clone();
    let absent = lab.switch.listen_for_absent(&hub).unwrap();
    let edge = AddressEdge {
        caller: CALLER,
        callee: DECLARED,
    };
    lab.switch.add_edge(edge).unwrap();
    let client = |script| {
        let mut spec = lab.admit(lab.lab.python(script), CALLER);
        spec.environment
            .insert("ADDRESS".into(), DECLARED.to_string());
        spec
    };
    let (flood, line) = lab.lab.start(&client(FLOOD));
    assert_eq!(line, "sent");
    assert_eq!(lab.lab.run(&client(SEND_ONE)).code, Some(0));
    let mut buffer = [0; 10];
    let mut drain = |socket: &UdpSocket| {
        let received = std::iter::from_fn(|| receive_datagram(socket, &mut buffer).ok());
        let received = received.take_while(|one| one.lost == 0);
        received.count()
    };
    let mut kept: Vec<_> = absent.datagrams.iter().map(&mut drain).collect();
    kept.retain(|count| *count > 0);
    kept.sort_unstable();
    assert_eq!(kept.len(), 2, "each instance has its queue: {kept:?}");
    assert!(kept[0] == 1 && (600..5_000).contains(&kept[1]), "{kept:?}");
    // The loss is told with the datagrams that were queued after it.
    let lost = receive(&absent.datagrams, &mut [0; 10]).lost as usize;
    assert!(lost >= 5_000 - kept[1], "{lost} {kept:?}");
    kill(flood);
}
