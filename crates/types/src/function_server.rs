//! A function's own HTTP server inside its instance, for callers on the same machine.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use crate::policy::LoopbackDelivery;

/// Access to an instance's own network namespace.
pub trait InstanceNetwork: Send + Sync + fmt::Debug + 'static {
    /// Creates a non-blocking TCP socket inside the namespace. It reaches what the instance itself
    /// reaches.
    ///
    /// # Errors
    /// Fails when the namespace cannot be entered.
    fn open_tcp_socket(&self, is_ipv6: bool) -> io::Result<OwnedFd>;

    /// Returns the delivery of bytes on connections of such sockets.
    fn delivery(&self) -> LoopbackDelivery;

    /// Returns how many processes of the instance the kernel has killed for lack of memory; `None`
    /// where it does not count them.
    fn oom_kills(&self) -> Option<u64>;
}

/// HTTP/1.1 server of a function, and the contract of its watchdog for calls to it.
#[derive(Debug)]
pub struct FunctionServer {
    /// Address on the instance's loopback.
    pub addr: SocketAddr,
    /// Path in front of every request's own; empty or `/PATH`.
    pub base_path: String,
    /// Maximum duration of a call (`exec_timeout`); `None`: no limit of the watchdog.
    pub exec_timeout: Option<Duration>,
    /// Network of the instance.
    pub network: Arc<dyn InstanceNetwork>,
}

impl PartialEq for FunctionServer {
    /// Servers of two instances differ even where their addresses are equal. An instance announces
    /// one server in its life.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.network, &other.network)
    }
}

impl Eq for FunctionServer {}
