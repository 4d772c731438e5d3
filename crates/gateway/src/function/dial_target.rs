//! The other end of connections, shared by all threads: the watchdog of an instance, or another node.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use nearpath_types::{NodeName, PeerNode};

use super::udp_reachability::UdpReachability;

/// Target of connections. Connection pools use it as their key.
#[derive(Debug)]
pub(crate) struct DialTarget {
    /// Address for TCP and UDP.
    pub addr: SocketAddr,
    /// Key of connection pools, never reused while the process lives.
    pub serial: u64,
    /// Reachability over UDP.
    pub udp: UdpReachability,
    /// Name of the node; `None`: an instance of this node.
    node: Option<NodeName>,
    /// Server name in its certificate, once known; it does not change.
    server_name: OnceLock<Arc<str>>,
    /// Connections over TLS that all threads keep for plain requests, or are opening.
    kept_connections: AtomicUsize,
    /// No new requests: connections are not kept.
    is_withdrawn: AtomicBool,
    /// Nothing answers any more: connections that cannot notice that must be cut.
    is_gone: AtomicBool,
}

impl DialTarget {
    /// Creates the target for an instance's watchdog.
    pub(super) fn for_instance(addr: SocketAddr) -> Self {
        Self::new(addr, None)
    }

    /// Creates the target for another node, whose certificate has the node's name.
    pub(crate) fn for_node(node: &PeerNode) -> Self {
        let target = Self::new(node.addr, Some(node.name.clone()));
        target.set_server_name(&node.name.as_str().into());
        target
    }

    fn new(addr: SocketAddr, node: Option<NodeName>) -> Self {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);
        Self {
            addr,
            // Relaxed: only uniqueness matters, which the atomic addition gives by itself.
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            udp: UdpReachability::default(),
            node,
            server_name: OnceLock::new(),
            kept_connections: AtomicUsize::new(0),
            is_withdrawn: AtomicBool::new(false),
            is_gone: AtomicBool::new(false),
        }
    }

    /// Returns the node; `None` for an instance of this node.
    pub(crate) fn node(&self) -> Option<&NodeName> {
        self.node.as_ref()
    }

    /// Returns the server name for QUIC and TLS; `None` without a certificate.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.server_name.get().map(|name| &**name)
    }

    /// Sets the server name when the other end has received its certificate.
    pub(super) fn set_server_name(&self, name: &Arc<str>) {
        self.server_name.get_or_init(|| Arc::clone(name));
    }

    /// Counts a kept connection, unless there are `max`. Returns whether there is room.
    pub(crate) fn add_kept_connection(&self, max: usize) -> bool {
        // Relaxed: only the number matters.
        let add = |count| (count < max).then_some(count + 1);
        let kept = &self.kept_connections;
        kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add)
            .is_ok()
    }

    /// Counts a kept connection no more.
    pub(crate) fn remove_kept_connection(&self) {
        self.kept_connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether threads keep connections over TLS, or open some.
    pub(crate) fn has_kept_connections(&self) -> bool {
        self.kept_connections.load(Ordering::Relaxed) > 0
    }

    /// Marks the target: it gets no further requests.
    pub(super) fn mark_withdrawn(&self) {
        // Release pairs with the acquire load in `is_withdrawn`, as for the mark below.
        self.is_withdrawn.store(true, Ordering::Release);
    }

    /// Returns whether the target gets no further requests.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.is_withdrawn.load(Ordering::Acquire)
    }

    /// Marks the target as gone.
    pub(super) fn mark_gone(&self) {
        self.mark_withdrawn();
        // Pairs with the acquire load in `is_gone`, so that a sweep sees the state before the
        // mark.
        self.is_gone.store(true, Ordering::Release);
    }

    /// Returns whether the target is gone. After the removal of an instance's function this is never
    /// known.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }
}
