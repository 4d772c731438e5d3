//! Settings of an issuer, and identities that it issues.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_types::NodeName;
use tokio::sync::mpsc;

/// Settings of an issuer.
#[derive(Debug, Clone)]
pub struct IssuerSettings {
    /// Id of the node on its machine.
    pub node: String,
    /// Name of the node among others; `None`: it is the only one.
    pub member_name: Option<NodeName>,
    /// Source address of the gateway's packets to instances: address tokens are bound to it.
    pub gateway_ip: IpAddr,
    /// Lifetime of certificates; they are renewed after two thirds of it.
    pub lifetime: Duration,
}

/// The identity of one instance.
#[derive(Debug)]
pub struct InstanceIdentity {
    /// Name under which callers reach it (TLS server name).
    pub name: Arc<str>,
    /// Provisions for its watchdog: the first is there at once, others follow with each change.
    pub frames: mpsc::Receiver<Vec<u8>>,
}
