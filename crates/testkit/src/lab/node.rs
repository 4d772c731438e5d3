//! A network namespace that plays a machine.

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

/// Number and interval of checks whether an address is ready.
const MAX_ADDRESS_ROUNDS: u32 = 20_000;
const ADDRESS_POLL_INTERVAL: Duration = Duration::from_micros(500);
/// Flag of routes to the machine itself (`RTF_LOCAL`, linux/ipv6_route.h).
const LOCAL_ROUTE_FLAG: u32 = 0x8000_0000;

/// A network namespace. Only the network is the node's own: files and processes are those of the
/// machine. Clones are the same node.
///
/// The namespace has no name in the file system. `nsenter --net=PATH`, with
/// [`LabNode::namespace_path`], runs a shell or tcpdump in it.
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

    /// Name of the node in the test.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Path of the namespace for other programs, as long as this process lives and holds the node.
    pub fn namespace_path(&self) -> PathBuf {
        format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            self.0.namespace.as_raw_fd()
        )
        .into()
    }

    /// Runs `work` on a thread in the node. Its sockets, threads and processes stay in the node. A
    /// panic of `work` continues here.
    ///
    /// # Panics
    /// Without `CAP_SYS_ADMIN`, which creating the node needed, too.
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

    /// Starts a program in the node. Dropping the lab kills all programs that still run in the
    /// node.
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

    /// Runs a program in the node to its end, without input, and returns its output.
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

    /// Opens the node's devices, addresses and routes.
    ///
    /// # Errors
    /// When the process has too many open files.
    pub fn open_devices(&self) -> io::Result<NetworkDevices> {
        self.enter(NetworkDevices::open)
    }

    /// Number of packets that a device dropped when sending.
    pub(super) fn dropped_packets(&self, device: &str) -> io::Result<u64> {
        let table = self.enter(|| fs::read_to_string("/proc/thread-self/net/dev"))?;
        let mut rows = table.lines().filter_map(|line| line.split_once(':'));
        let row = rows.find_map(|(name, row)| (name.trim() == device).then_some(row));
        // Columns: eight for receiving, then octets, packets, errors and drops for sending.
        let dropped = row.and_then(|row| row.split_ascii_whitespace().nth(11)?.parse().ok());
        dropped.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::NotFound,
                format!("{} has no {device}", self.name()),
            )
        })
    }

    /// Waits until a new IPv6 address receives packets. The kernel activates it after a delay and
    /// drops packets until then.
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

    /// Routes packets for `to` over `device`: to the next hop `via`, or directly to the other end.
    ///
    /// # Errors
    /// Without such a device, or when the device does not reach the next hop.
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

    /// Enables forwarding of IPv4 and IPv6: the node becomes a router.
    ///
    /// # Errors
    /// When the kernel does not allow it.
    pub fn enable_forwarding(&self) -> io::Result<()> {
        self.write_setting("ipv4/ip_forward", "1")?;
        self.write_setting("ipv6/conf/all/forwarding", "1")
    }

    /// Writes a setting below `/proc/sys/net`, such as `ipv4/tcp_congestion_control`, for this
    /// node.
    ///
    /// # Errors
    /// When the setting does not exist, or cannot differ between namespaces.
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

/// Returns true if a line of `ipv6_route` is the route of an address to this machine. Its columns
/// are destination, prefix length, source and length, next hop, metric, two counters, flags and
/// device, in hexadecimal.
fn is_local(route: &str, address: Ipv6Addr) -> bool {
    let columns: Vec<&str> = route.split_ascii_whitespace().collect();
    let [to, prefix, .., flags, _] = columns[..] else {
        return false;
    };
    let local = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LOCAL_ROUTE_FLAG != 0);
    local && prefix == "80" && u128::from_str_radix(to, 16) == Ok(address.to_bits())
}
