//! A network namespace that stands for a machine.

use std::fs;
use std::io;
use std::net::Ipv6Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nearpath_kernel::devices::{IpPrefix, NetworkDevices, create_quiet_namespace};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::leftovers::{self, LabMark};

/// How often and after what time the kernel is asked again whether an address is ready.
const MAX_ADDRESS_ROUNDS: u32 = 20_000;
const ADDRESS_POLL_INTERVAL: Duration = Duration::from_micros(500);
/// The flag of routes that lead into the machine itself (`RTF_LOCAL`, linux/ipv6_route.h).
const LOCAL_TABLE: u32 = 0x8000_0000;

/// A network namespace; only the network is the node's own: files and processes are those of the machine. Clones are the
/// same node.
///
/// It has no name in the file system. `nsenter --net=PATH`, with [`LabNode::namespace_path`], puts a shell or tcpdump into it.
#[derive(Clone)]
pub struct LabNode(Arc<NodeInner>);

struct NodeInner {
    name: String,
    namespace: OwnedFd,
}

impl LabNode {
    pub(super) fn create_node(name: &str) -> io::Result<Self> {
        Ok(Self(Arc::new(NodeInner {
            name: name.to_owned(),
            namespace: create_quiet_namespace()?,
        })))
    }

    /// What the test calls it.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Where other programs find the namespace, as long as this process lives and holds the node.
    pub fn namespace_path(&self) -> PathBuf {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.0.namespace.as_raw_fd()
        )
        .into()
    }

    /// Does something on a thread in the node, and waits for it. Sockets opened there, and threads and processes started
    /// there, belong to the node for good. A panic of `work` goes on here.
    ///
    /// # Panics
    /// Without `CAP_SYS_ADMIN`, which making the node needed, too.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let here = || {
            move_into_link_name_space(self.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("the right to make it");
            work()
        };
        let ended = thread::scope(|scope| {
            let thread = thread::Builder::new().name(self.name().to_owned());
            thread
                .spawn_scoped(scope, here)
                .expect("room for a thread")
                .join()
        });
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Starts a program in the node. What still runs in the node when the lab is dropped is killed, whoever started it.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        command.env(
            leftovers::MARK_VARIABLE,
            LabMark::of_this_process()?.to_string(),
        );
        self.enter(|| command.spawn())
    }

    /// Runs a program in the node to its end, without input, and collects what it prints.
    ///
    /// # Errors
    /// When the program cannot be started.
    pub fn run_program(&self, command: &mut Command) -> io::Result<Output> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.spawn(command)?.wait_with_output()
    }

    /// The node's devices, addresses and routes.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn open_devices(&self) -> io::Result<NetworkDevices> {
        self.enter(NetworkDevices::open)
    }

    /// How many packets a device was given to send and has dropped.
    pub(super) fn dropped_packets(&self, device: &str) -> io::Result<u64> {
        let table = self.enter(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        let mut rows = table.lines().filter_map(|line| line.split_once(':'));
        let row = rows.find_map(|(name, row)| (name.trim() == device).then_some(row));
        // Eight columns on receiving, then octets, packets, errors and drops on sending.
        let dropped = row.and_then(|row| row.split_ascii_whitespace().nth(11)?.parse().ok());
        dropped.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} has no {device}", self.name()),
            )
        })
    }

    /// Waits until packets for a new IPv6 address are taken: the kernel sees to that some time after giving it, and drops
    /// them until then.
    pub(super) fn await_address(&self, address: Ipv6Addr) -> io::Result<()> {
        for _ in 0..MAX_ADDRESS_ROUNDS {
            let routes = self.enter(|| fs::read_to_string("/proc/thread-self/net/ipv6_route"))?;
            if routes.lines().any(|route| is_local(route, address)) {
                return Ok(());
            }
            thread::sleep(ADDRESS_POLL_INTERVAL);
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{address} in {} is of no use after 10 s", self.name()),
        ))
    }

    /// Sends packets for `to` over `device`: to the next hop `via`, or without one to whoever is at its other end.
    ///
    /// # Errors
    /// Without such a device, or when the next hop is not reached by it.
    pub fn add_route(
        &self,
        to: IpPrefix,
        via: Option<std::net::IpAddr>,
        device: &str,
    ) -> io::Result<()> {
        let mut devices = self.open_devices()?;
        let device = devices.device_index(device)?;
        devices.add_route(to, via, device)
    }

    /// Lets the node pass on packets that are not for it: it becomes a router, for IPv4 and IPv6.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn enable_forwarding(&self) -> io::Result<()> {
        self.write_setting("ipv4/ip_forward", "1")?;
        self.write_setting("ipv6/conf/all/forwarding", "1")
    }

    /// Writes a setting below `/proc/sys/net`, such as `ipv4/tcp_congestion_control`, for this node.
    ///
    /// # Errors
    /// When there is no such setting, or a namespace cannot have its own.
    pub fn write_setting(&self, name: &str, value: &str) -> io::Result<()> {
        let path = format!("/proc/sys/net/{name}");
        self.enter(|| fs::write(&path, value))
            .map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
    }
}

impl AsFd for LabNode {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.namespace.as_fd()
    }
}

impl std::fmt::Debug for LabNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Node").field(&self.0.name).finish()
    }
}

/// Whether a line of `ipv6_route` is the route of packets for that address into the machine. Its columns are destination,
/// length of the prefix, source and length, next hop, metric, two counters, flags and device, in hexadecimal.
fn is_local(route: &str, address: Ipv6Addr) -> bool {
    let columns: Vec<&str> = route.split_ascii_whitespace().collect();
    let [to, prefix, .., flags, _] = columns[..] else {
        return false;
    };
    let local = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LOCAL_TABLE != 0);
    local && prefix == "80" && u128::from_str_radix(to, 16) == Ok(address.to_bits())
}
