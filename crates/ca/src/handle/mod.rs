//! The handle through which a process asks its issuer.
//!
//! Only instances of functions that use certificates need an identity; the others cost nothing.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use nearpath_types::direct::ForeignAuthority;
use nearpath_types::{FunctionId, InstanceId};
use nearpath_wire::quic::CallerConfig;
use thiserror::Error;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::issuer::{Issuer, TimePoint};
use crate::responder::HandshakeResponder;
use crate::thread::{self, IssueRequest, IssuerCommand};
pub use crate::types::{InstanceIdentity, IssuerSettings};

/// Instances whose requests may be queued; more wait for a permit, first come, first served.
const MAX_QUEUED_INSTANCES: usize = 256;

/// The issuer could not be started.
#[derive(Debug, Error)]
pub enum IssuerStartError {
    /// No key or certificate could be made.
    #[error("identities: {0}")]
    Identity(Box<dyn std::error::Error + Send + Sync>),
    /// The operating system started no thread.
    #[error("the issuer's thread: {0}")]
    Thread(io::Error),
}

/// A handle to the issuer's thread, which ends with the last handle.
pub struct IssuerHandle {
    jobs: Sender<IssuerCommand>,
    permits: Arc<Semaphore>,
    authority: Arc<[u8]>,
}

impl IssuerHandle {
    /// Starts an issuer. The receiver holds the gateway's identity and its updates.
    ///
    /// # Errors
    /// See [`IssuerStartError`].
    pub fn start(
        settings: IssuerSettings,
    ) -> Result<(Self, watch::Receiver<CallerConfig>), IssuerStartError> {
        let (issuer, caller) =
            Issuer::new(settings, TimePoint::now()).map_err(IssuerStartError::Identity)?;
        let authority = issuer.authority();
        let jobs = thread::start(issuer).map_err(IssuerStartError::Thread)?;
        Ok((Self::new(jobs, authority), caller))
    }

    fn new(jobs: Sender<IssuerCommand>, authority: Arc<[u8]>) -> Self {
        Self {
            jobs,
            authority,
            // The queue itself is unbounded; the permits bound it, and waiting for one blocks no
            // thread.
            permits: Arc::new(Semaphore::new(MAX_QUEUED_INSTANCES)),
        }
    }

    /// Issues the identity of an instance. Dropping the future revokes it.
    pub fn issue(
        &self,
        function: FunctionId,
        instance: InstanceId,
    ) -> impl Future<Output = Result<InstanceIdentity, String>> + Send + use<> {
        let (jobs, permits) = (self.jobs.clone(), Arc::clone(&self.permits));
        async move {
            let permit = permits
                .acquire_owned()
                .await
                .map_err(|closed| closed.to_string())?;
            let (reply, issued) = oneshot::channel();
            // Before the request is sent: this future may be dropped at any await from here on.
            let mut pending = PendingIdentity { issued, jobs };
            // A thread that has ended drops the request, and the receiver below reports it.
            let _ = pending.jobs.send(IssuerCommand::Issue(IssueRequest {
                function,
                instance,
                reply,
                permit,
            }));
            (&mut pending.issued)
                .await
                .unwrap_or_else(|_| Err("the issuer has ended".to_owned()))
        }
    }

    /// Replaces the permitted callers of some functions; an empty list: no caller.
    pub fn update_callers(&self, changed: BTreeMap<FunctionId, Vec<FunctionId>>) {
        // Without its thread no instance is called any more.
        let _ = self.jobs.send(IssuerCommand::UpdateCallers(changed));
    }

    /// Returns the certificate (DER) of the authority that signs for instances.
    pub fn authority(&self) -> Arc<[u8]> {
        self.authority.clone()
    }

    /// Replaces the authorities of other nodes that an instance trusts.
    pub fn update_foreign(&self, instance: &str, foreign: Vec<ForeignAuthority>) {
        let command = IssuerCommand::UpdateForeign(instance.to_owned(), foreign);
        let _ = self.jobs.send(command); // as above
    }

    /// Creates the callee's half of a handshake with the instance at `caller`.
    pub fn responder(&self, callee: &str, caller: SocketAddr) -> HandshakeResponder {
        HandshakeResponder::new(callee, caller, self.jobs.clone())
    }

    /// Revokes the identity of an instance that has ended.
    pub fn revoke(&self, name: &str) {
        let _ = self.jobs.send(IssuerCommand::Revoke(name.to_owned())); // as above
    }
}

/// A request under way. Dropping it revokes an identity that was issued but not received.
struct PendingIdentity {
    issued: oneshot::Receiver<Result<InstanceIdentity, String>>,
    jobs: Sender<IssuerCommand>,
}

impl Drop for PendingIdentity {
    fn drop(&mut self) {
        // Close first: a reply sent after this fails, and the thread then revokes it itself.
        self.issued.close();
        if let Ok(Ok(identity)) = self.issued.try_recv() {
            let _ = self
                .jobs
                .send(IssuerCommand::Revoke(identity.name.to_string()));
        }
    }
}

#[cfg(test)]
mod tests;
