//! The sender of a request.

use std::net::{IpAddr, SocketAddr};

use http::header::HeaderValue;

/// The callers that a listener is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Zone {
    /// Everybody, for functions; the administrator, for the rest.
    Public,
    /// Instances, along declared edges.
    Inner,
}

/// The other end of a connection.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Tells callers outside from instances.
    pub zone: Zone,
    /// The caller's address; an instance is identified by it.
    pub addr: IpAddr,
    /// The same, for `X-Forwarded-For`.
    pub forwarded_for: HeaderValue,
    /// `http`, `https` or another protocol, for `X-Forwarded-Proto`.
    pub proto: HeaderValue,
}

impl Peer {
    /// A peer that speaks `proto`.
    pub(crate) fn new(zone: Zone, addr: IpAddr, proto: &'static str) -> Self {
        let addr = addr.to_canonical();
        let forwarded_for = HeaderValue::from_str(&addr.to_string()).expect("an address is ASCII");
        Self { zone, addr, forwarded_for, proto: HeaderValue::from_static(proto) }
    }

    /// The client of an HTTP connection.
    pub(crate) fn http_client(zone: Zone, is_encrypted: bool, addr: SocketAddr) -> Self {
        Self::new(zone, addr.ip(), if is_encrypted { "https" } else { "http" })
    }
}
