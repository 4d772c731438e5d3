//! Environment of the instance: variables that the node sets and a tenant cannot.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `NEARPATH_DISPATCH` | path of the socket to the function's domain; see `contract/dispatch.md` |
//! | `NEARPATH_PICKUP` | loopback address and port that the name `gateway` resolves to in this instance |
//! | `NEARPATH_GATEWAY` | address and port of the gateway itself |
//! | `NEARPATH_GATEWAY_LISTENER` | loopback address and port at which the gateway listens in this instance |
//! | `NEARPATH_EIP` | the instance's own address |
//! | `NEARPATH_IDENTITY` | `awaited`: the node sends an identity through `NEARPATH_IDENTITY_FD`, and the instance is not ready before |
//! | `NEARPATH_MAX_BODY` | limit of a request's body in bytes (`nearpath.io/max-body`) |
//! | `NEARPATH_TRANSPORT` | transport that callers must use (`nearpath.io/transport`) |
//!
//! `NEARPATH_IDENTITY` and `NEARPATH_TRANSPORT` also apply where the tenant turns shared memory
//! off.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use nearpath_types::policy::CallTransport;

/// Settings of the node. Each is absent outside a chain, in a test, or in an instance without a
/// network of its own.
#[derive(Debug, Clone, Default)]
pub(crate) struct InstanceEnv {
    pub(crate) dispatch_path: Option<PathBuf>,
    pub(crate) outbound: Option<OutboundAddrs>,
    /// Address on the watchdog's port at which the gateway listens.
    pub(crate) gateway_listener: Option<SocketAddr>,
    pub(crate) max_body_bytes: Option<usize>,
}

/// Addresses of the outbound proxy: its own, the gateway's and the instance's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutboundAddrs {
    pub(crate) listen: SocketAddr,
    pub(crate) gateway: SocketAddr,
    pub(crate) eip: IpAddr,
}

/// Reads the transport that callers must use.
pub(crate) fn read_transport(get: &dyn Fn(&str) -> Option<String>) -> CallTransport {
    // An unknown value counts as the default: the node wrote it, so no tenant can correct it.
    get("NEARPATH_TRANSPORT")
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}

/// Returns whether the node will send an identity.
pub(crate) fn is_identity_expected(get: &dyn Fn(&str) -> Option<String>) -> bool {
    get("NEARPATH_IDENTITY").is_some_and(|what| what == "awaited")
}

impl InstanceEnv {
    /// Returns whether another listener of the platform has the watchdog's port on a loopback address.
    pub(crate) fn shares_port(&self) -> bool {
        self.outbound.is_some() || self.gateway_listener.is_some()
    }

    /// Reads the variables. An invalid one counts as absent: the node writes them, not the tenant.
    /// The tenant's `shared_memory=false` keeps the watchdog out of the domain (ADR 14).
    pub(crate) fn read(get: &dyn Fn(&str) -> Option<String>, shared_memory: bool) -> Self {
        fn read_variable<T: FromStr>(
            get: &dyn Fn(&str) -> Option<String>,
            name: &str,
        ) -> Option<T> {
            get(name)?.parse().ok()
        }
        let read_outbound = || {
            // All three or none: a proxy without one of them could not pass calls on.
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
            dispatch_path: read_variable(get, "NEARPATH_DISPATCH").filter(|_| shared_memory),
            outbound: read_outbound(),
            gateway_listener: read_variable(get, "NEARPATH_GATEWAY_LISTENER"),
            max_body_bytes: read_variable(get, "NEARPATH_MAX_BODY"),
        }
    }
}
