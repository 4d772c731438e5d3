//! Identities of instances, for callers on other machines, and direct calls between instances.
//!
//! The node requests an identity for each instance that needs one, in parallel to its start. It
//! forwards the frames through the instance's socket (`contract/identity.md`) without interpreting
//! them. Each instance has its own name for life. An instance with direct calls ([`callees`]) gets
//! the addresses of its callees, and help with handshakes ([`watchdog_session`]). For calls between
//! nodes it gets a socket of the machine ([`direct_socket`]), which reaches its peers alone
//! ([`remote_peers`]).

mod callees;
mod callers;
mod direct_registry;
mod direct_socket;
mod handshake_jobs;
mod remote_peers;
mod watchdog_session;
mod watchdog_stream;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use nearpath_types::direct::ForeignAuthority;
use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionId, InstanceAddr, InstanceId, RoutingSnapshot};
use tokio::sync::{mpsc, watch};

use crate::chains::PolicyChanges;
use crate::direct_stats::DirectStats;
use crate::machine::InstanceMachine;
use watchdog_session::WatchdogSession;
use watchdog_stream::WatchdogStream;

pub(crate) use callers::DirectCallers;
pub(crate) use direct_registry::DirectRegistry;

/// Issues identities: implemented by the controller's authority, and by issuers of sessions.
pub trait IdentityIssuer: Send + Sync {
    /// Returns whether instances with this transport need an identity.
    fn serves_transport(&self, transport: CallTransport) -> bool;

    /// Issues the identity of an instance, or a reason for its absence; callers then use HTTP. It
    /// runs in parallel to the start, which waits for it at the end.
    fn issue_identity(
        &self,
        function: FunctionId,
        instance: InstanceId,
    ) -> BoxFuture<'static, Result<InstanceIdentity, String>>;

    /// Forgets an instance that is gone.
    fn forget_instance(&self, name: &str);

    /// Replaces the callers of some functions; an empty list: no direct caller.
    fn update_callers(&self, _changed: BTreeMap<FunctionId, Vec<FunctionId>>) {}

    /// Replaces the authorities of other nodes that an instance trusts.
    fn update_foreign(&self, _instance: &str, _authorities: Vec<ForeignAuthority>) {}

    /// Opens the half of a handshake in memory that responds for the instance `callee` to a caller
    /// at this address.
    ///
    /// The caller's half is in its watchdog. Returns `None` for an unknown instance, or if this
    /// issuer issues no sessions.
    fn open_half(&self, _callee: &str, _caller: SocketAddr) -> Option<Box<dyn HandshakeHalf>> {
        None
    }
}

/// The responding half of a handshake; see [`IdentityIssuer::open_half`].
pub trait HandshakeHalf: Send {
    /// Processes the caller's datagrams and returns the response.
    ///
    /// Results of the handshake are on their way to the callee before it returns. Takes a few
    /// tenths of a millisecond of CPU time.
    fn step(&mut self, datagrams: &[Vec<u8>]) -> HandshakeStep;
}

/// Result of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HandshakeStep {
    /// Datagrams for the other half.
    pub datagrams: Vec<Vec<u8>>,
    /// Set after the last step.
    pub done: bool,
}

/// An instance as a caller.
#[derive(Debug, Clone)]
pub(crate) struct CallerInstance {
    pub(crate) function: FunctionId,
    pub(crate) instance: InstanceId,
    /// Source address of its calls. `None` if its calls are not intercepted; then it gets no
    /// callees.
    pub(crate) addr: Option<InstanceAddr>,
}

/// Shared state that sessions use.
#[derive(Clone)]
pub(crate) struct IdentityContext {
    pub(crate) snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    pub(crate) machine: Arc<dyn InstanceMachine>,
    pub(crate) direct_stats: DirectStats,
    pub(crate) direct: DirectRegistry,
}

/// Identity of an instance.
#[derive(Debug)]
pub struct InstanceIdentity {
    /// Name for callers.
    pub name: Arc<str>,
    /// Frames for the watchdog: the first is available at once, others follow on changes.
    pub frames: mpsc::Receiver<Vec<u8>>,
}

/// The issuer of a node, if it has one.
#[derive(Clone, Default)]
pub struct IdentityService(Option<Arc<dyn IdentityIssuer>>);

impl IdentityService {
    /// Wraps an issuer.
    pub fn from_issuer(issuer: Arc<dyn IdentityIssuer>) -> Self {
        Self(Some(issuer))
    }

    /// Returns whether instances with this transport get an identity.
    pub(crate) fn serves_transport(&self, transport: CallTransport) -> bool {
        self.0
            .as_ref()
            .is_some_and(|issuer| issuer.serves_transport(transport))
    }

    /// Updates the permitted callers of functions with certificates. Call it before their instances
    /// get identities.
    pub(crate) fn update_callers(&self, callers: &mut DirectCallers, changes: &PolicyChanges) {
        let Some(issuer) = &self.0 else { return };
        let changed =
            callers.apply_changes(changes, |transport| issuer.serves_transport(transport));
        // Most functions have no certificate, and the issuer's thread is not woken for them.
        if !changed.is_empty() {
            issuer.update_callers(changed);
        }
    }

    /// Sends an instance its identity and all changes through `socket`.
    ///
    /// Calls `known` with the name before anything is sent, so the caller knows it before messages
    /// of the instance arrive. Runs until the instance ends, or the task is aborted.
    pub(crate) async fn run_session(
        self,
        caller: CallerInstance,
        socket: OwnedFd,
        context: IdentityContext,
        known: impl FnOnce(Result<Arc<str>, String>),
    ) {
        let Some(issuer) = self.0 else { return };
        let InstanceIdentity { name, mut frames } = match issuer
            .issue_identity(caller.function.clone(), caller.instance)
            .await
        {
            Ok(identity) => identity,
            Err(why) => return known(Err(why)),
        };
        // Revokes the identity on every return below, and when the task is aborted.
        let _forget = ForgetOnDrop {
            issuer: Arc::clone(&issuer),
            name: Arc::clone(&name),
        };
        let Ok(mut stream) = WatchdogStream::new(socket) else {
            return;
        };
        // Before the first frame: the agent knows the name before the watchdog can answer under it.
        known(Ok(Arc::clone(&name)));
        // The name stays valid until the instance is gone.
        let Some(first) = frames.recv().await else {
            // The issuer has ended; waiting keeps the identity until the instance is gone.
            return std::future::pending().await;
        };
        if stream.write_frame(&first).await.is_ok() {
            // ends when the watchdog stops reading, which means that the instance is ending
            WatchdogSession::new(stream, (name, caller), issuer, context)
                .run(frames)
                .await;
        }
    }
}

struct ForgetOnDrop {
    issuer: Arc<dyn IdentityIssuer>,
    name: Arc<str>,
}

impl Drop for ForgetOnDrop {
    fn drop(&mut self) {
        self.issuer.forget_instance(&self.name);
    }
}

impl fmt::Debug for IdentityService {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "IdentityService"
        } else {
            "IdentityService(none)"
        })
    }
}

#[cfg(test)]
mod tests;
