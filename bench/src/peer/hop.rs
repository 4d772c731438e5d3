//! Networks between a gateway and one instance: the switch as it is, and a gateway in a namespace of its own, from which
//! packets get to the instance through the switch's IP stack or past it.

use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nearpath_kernel::bpf::Forwarder;
use nearpath_kernel::namespace::within;
use nearpath_kernel::station::Station;
use nearpath_kernel::switch::Switch;
use nearpath_types::Eip;

const GATEWAY: Eip = Eip(Ipv4Addr::new(10, 62, 0, 1));
const INSTANCE: Eip = Eip(Ipv4Addr::new(10, 62, 0, 2));
/// What stations outside the default topology ask for when they send.
const NEXT_HOP: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);

/// What a machine that routes to its containers has at the least: connection tracking, a filter by state, address
/// translation that does not apply.
const RULES: &str = "\
table ip hop {
  chain service { type nat hook prerouting priority dstnat; ip daddr 10.96.0.0/12 counter drop; }
  chain forward { type filter hook forward priority filter; policy drop;
    ct state established,related accept; ct state invalid drop; ip saddr 10.62.0.1 ip daddr 10.62.0.0/16 accept; }
  chain out { type nat hook postrouting priority srcnat; ip daddr != 10.62.0.0/16 masquerade; }
}
";

/// The way between the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// The gateway's sockets are in the switch: one veth pair, as `nearpath up` does it.
    Switch,
    /// Two pairs, and the switch's IP stack routes between them.
    Routed,
    /// The same with packet filter and connection tracking.
    Filtered,
    /// Two pairs, and the forwarder between them.
    Forwarded,
}

/// A network that stands.
pub(crate) struct Hop {
    switch: Switch,
    gateway: Option<Station>,
    instance: Station,
    _forwarder: Option<Forwarder>,
}

impl Hop {
    pub(crate) fn build(way: Way) -> io::Result<Self> {
        let next_hop = if way == Way::Switch { GATEWAY.0 } else { NEXT_HOP };
        let switch = Switch::create(next_hop)?;
        let instance = Station::create(&switch, INSTANCE, "instance", next_hop)?;
        let gateway =
            (way != Way::Switch).then(|| Station::create(&switch, GATEWAY, "gateway", next_hop)).transpose()?;
        if matches!(way, Way::Routed | Way::Filtered) {
            within(&switch, || fs::write("/proc/sys/net/ipv4/ip_forward", "1"))?;
        }
        if way == Way::Filtered {
            within(&switch, filter)?;
        }
        let forwarder = match &gateway {
            Some(gateway) if way == Way::Forwarded => Some(forwarder(&switch, [gateway, &instance])?),
            _ => None,
        };
        Ok(Self { switch, gateway, instance, _forwarder: forwarder })
    }

    /// Where the gateway's sockets are.
    pub(crate) fn front(&self) -> BorrowedFd<'_> {
        self.gateway.as_ref().map_or_else(|| self.switch.as_fd(), AsFd::as_fd)
    }

    /// Starts this program beside the instance's address, on the given processors, and waits until it accepts connections.
    pub(crate) fn serve(&self, subcommand: &str, port: u16, on: &[usize]) -> io::Result<Server> {
        let addr = SocketAddr::from((INSTANCE.0, port));
        let mut command = Command::new(std::env::current_exe()?);
        command.args([subcommand, "--listen", &addr.to_string()]).stdin(Stdio::null());
        let child = within(&self.instance, || pin(on).and_then(|()| command.spawn()))?;
        let server = Server { addr, child };
        within(self.front(), || accepts(addr)).map(|()| server)
    }
}

/// A process of the instance; ends when it is dropped.
pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    child: Child,
}

impl Server {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Keeps the calling thread, and processes that it starts, on some processors.
pub(crate) fn pin(on: &[usize]) -> io::Result<()> {
    let mut cpus = rustix::thread::CpuSet::new();
    on.iter().for_each(|cpu| cpus.set(*cpu));
    Ok(rustix::thread::sched_setaffinity(None, &cpus)?)
}

fn forwarder(switch: &Switch, stations: [&Station; 2]) -> io::Result<Forwarder> {
    let forwarder = Forwarder::load()?;
    for station in stations {
        forwarder.attach(switch, station.eip(), station.device())?;
    }
    forwarder.allow(GATEWAY, INSTANCE)?;
    Ok(forwarder)
}

/// Loads the rules into the calling thread's namespace.
fn filter() -> io::Result<()> {
    let mut nft = Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    if let Some(mut input) = nft.stdin.take() {
        input.write_all(RULES.as_bytes())?;
    }
    let output = nft.wait_with_output()?;
    let said = || io::Error::other(format!("nft: {}", String::from_utf8_lossy(&output.stderr).trim()));
    output.status.success().then_some(()).ok_or_else(said)
}

fn accepts(addr: SocketAddr) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::TimedOut);
    for _ in 0..500 {
        match TcpStream::connect_timeout(&addr, Duration::from_secs(1)) {
            Ok(_) => return Ok(()),
            Err(error) => last = error,
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(io::Error::new(last.kind(), format!("{addr} does not accept connections: {last}")))
}
