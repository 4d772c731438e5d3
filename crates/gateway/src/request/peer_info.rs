//! The sender of a request.

use std::net::{IpAddr, SocketAddr};

use http::header::HeaderValue;

/// The callers that a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListenerZone {
    /// Everybody, for functions; the administrator, for the rest.
    Public,
    /// Instances, along declared edges.
    Internal,
}

/// The other end of a connection.
#[derive(Debug)]
pub(crate) struct PeerInfo {
    /// Tells callers outside from instances.
    pub zone: ListenerZone,
    /// The caller's address; an instance is identified by it.
    pub addr: IpAddr,
    /// The same, for `X-Forwarded-For`.
    pub forwarded_for: HeaderValue,
    /// `http`, `https` or another protocol, for `X-Forwarded-Proto`.
    pub proto: HeaderValue,
}

impl PeerInfo {
    /// A peer that speaks `proto`.
    pub(crate) fn new(zone: ListenerZone, addr: IpAddr, proto: &'static str) -> Self {
        let addr = addr.to_canonical();
        let forwarded_for = HeaderValue::from_str(&addr.to_string()).expect("an address is ASCII");
        Self {
            zone,
            addr,
            forwarded_for,
            proto: HeaderValue::from_static(proto),
        }
    }

    /// The client of an HTTP connection.
    pub(crate) fn http_client(zone: ListenerZone, is_encrypted: bool, addr: SocketAddr) -> Self {
        Self::new(zone, addr.ip(), if is_encrypted { "https" } else { "http" })
    }
}
