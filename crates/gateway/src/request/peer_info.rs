//! Senders of requests.

use std::cell::OnceCell;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::header::HeaderValue;
use nearpath_types::NodeName;

/// Callers that a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerZone {
    /// Any caller for functions; the administrator for other paths.
    Public,
    /// Instances, along declared edges.
    Internal,
    /// Other nodes, for their functions and their clients.
    Node,
}

/// Sender of requests on a connection.
#[derive(Debug)]
pub(crate) struct PeerInfo {
    /// Separates external callers from instances.
    pub zone: ListenerZone,
    /// Address of the caller, which identifies an instance.
    pub addr: IpAddr,
    /// The address for `X-Forwarded-For`.
    pub forwarded_for: HeaderValue,
    /// `http`, `https` or another protocol, for `X-Forwarded-Proto`.
    pub proto: HeaderValue,
    /// The other node, once its certificate is known; only in [`ListenerZone::Node`].
    pub node: OnceCell<NodeName>,
    /// Virtual address that an instance has connected to: all requests are for that function, and their
    /// paths are the function's own. `None`: each request names its function.
    pub called_address: Option<Ipv4Addr>,
    /// All regular connections were in use, so this one calls no function.
    pub is_on_reserve: bool,
}

impl PeerInfo {
    /// Creates a peer that uses `proto`.
    pub(crate) fn new(zone: ListenerZone, addr: IpAddr, proto: &'static str) -> Self {
        // A dual-stack socket reports IPv4 clients as mapped IPv6 addresses; edges and logs know
        // the IPv4 one.
        let addr = addr.to_canonical();
        // Formatted once per connection, not per request.
        let forwarded_for = HeaderValue::from_str(&addr.to_string()).expect("an address is ASCII");
        Self {
            zone,
            addr,
            forwarded_for,
            proto: HeaderValue::from_static(proto),
            node: OnceCell::new(),
            called_address: None,
            is_on_reserve: false,
        }
    }

    /// Creates the peer of an HTTP connection.
    pub(crate) fn http_client(zone: ListenerZone, is_encrypted: bool, addr: SocketAddr) -> Self {
        Self::new(zone, addr.ip(), if is_encrypted { "https" } else { "http" })
    }
}
