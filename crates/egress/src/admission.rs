//! Requests of the node to the egress proxy, and the types of its replies.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::mpsc::SyncSender;

use nearpath_types::egress::EgressSpec;
use nearpath_types::{Eip, FunctionId, InstanceId};

/// Writes a line about its connections to a function's log, in words for the tenant.
pub type TenantLogFn = Box<dyn Fn(&FunctionId, InstanceId, String) + Send>;

/// An instance that is about to start, with its declared destinations.
#[derive(Clone)]
pub struct AdmissionRequest {
    /// Id of the instance.
    pub instance: InstanceId,
    /// Function of the instance.
    pub function: FunctionId,
    /// Chain of the function.
    pub chain: Option<String>,
    /// Source address of the instance's packets.
    pub eip: Eip,
    /// Declared destinations.
    pub egress: Vec<EgressSpec>,
    /// Contents of the secrets that the declarations name.
    pub secrets: BTreeMap<String, Vec<u8>>,
    /// True if the function's settings ask for TLS to a database.
    pub requires_tls: bool,
}

/// Secrets must never reach a log.
impl fmt::Debug for AdmissionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} to {} destinations",
            self.instance,
            self.function,
            self.egress.len()
        )
    }
}

/// Confirms a command.
pub(crate) type DoneSender = SyncSender<()>;
