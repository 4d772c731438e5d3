//! What the node says of the instance's surroundings, in variables that a tenant cannot set.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NEARPATH_DISPATCH` | path of the door to the function's domain; see `contract/dispatch.md` |
//! | `NEARPATH_PICKUP` | loopback address and port that the name `gateway` means in this instance |
//! | `NEARPATH_GATEWAY` | address and port of the gateway itself |
//! | `NEARPATH_EIP` | the instance's own address |
//! | `NEARPATH_IDENTITY` | `awaited`: the instance is told who it is, through `NEARPATH_IDENTITY_FD`, and is not ready before |
//! | `NEARPATH_MAX_BODY` | most bytes of a request's body, as `nearpath.io/max-body` says |
//! | `NEARPATH_TRANSPORT` | what callers have to speak, as `nearpath.io/transport` says |
//!
//! `NEARPATH_IDENTITY` and `NEARPATH_TRANSPORT` count also where the tenant wants no shared memory.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use nearpath_types::policy::CallTransport;

/// Each is absent where there is none: outside a chain, in a test, in an instance without a network of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct InstanceEnv {
    pub(crate) dispatch_path: Option<PathBuf>,
    pub(crate) outbound: Option<OutboundAddrs>,
    pub(crate) max_body_bytes: Option<usize>,
}

/// Where calls are picked up, and where those go that take no other way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboundAddrs {
    pub(crate) listen: SocketAddr,
    pub(crate) gateway: SocketAddr,
    pub(crate) eip: IpAddr,
}

/// What callers have to speak.
pub(crate) fn read_transport(get: &dyn Fn(&str) -> Option<String>) -> CallTransport {
    get("NEARPATH_TRANSPORT")
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// Whether the instance is told who it is.
pub(crate) fn is_identity_expected(get: &dyn Fn(&str) -> Option<String>) -> bool {
    get("NEARPATH_IDENTITY").is_some_and(|what| what == "awaited")
}

impl InstanceEnv {
    /// Reads them. What cannot be read is as good as absent: they are the node's, not the tenant's.
    pub(crate) fn read(get: &dyn Fn(&str) -> Option<String>) -> Self {
        fn read_variable<T: FromStr>(
            get: &dyn Fn(&str) -> Option<String>,
            name: &str,
        ) -> Option<T> {
            get(name)?.parse().ok()
        }
        let read_outbound = || {
            let (listen, gateway) = (
                read_variable(get, "NEARPATH_PICKUP")?,
                read_variable(get, "NEARPATH_GATEWAY")?,
            );
            Some(OutboundAddrs {
                listen,
                gateway,
                eip: read_variable(get, "NEARPATH_EIP")?,
            })
        };
        Self {
            dispatch_path: read_variable(get, "NEARPATH_DISPATCH"),
            outbound: read_outbound(),
            max_body_bytes: read_variable(get, "NEARPATH_MAX_BODY"),
        }
    }
}
