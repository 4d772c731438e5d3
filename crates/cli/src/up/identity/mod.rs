//! Who the gateway and the instances are, where calls between them show certificates: an authority for the life of this process.
//!
//! [`office`] signs, mints sessions and renews, all of it on one thread of low priority ([`thread`]): beside instances' starts, never beside a
//! request. Keys and sessions are in memory alone. Only instances of functions that ask for such a transport get an identity; the others
//! cost nothing.

mod half;
mod office;
mod thread;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::BoxFuture;
use nearpath_node::{Answerer, Identity, Issuer};
use nearpath_types::policy::Transport;
use nearpath_types::{FunctionId, InstanceId};
use nearpath_wire::quic::Caller;
use tokio::sync::{Semaphore, oneshot, watch};

use super::plan::UpError;
use half::Half;
use office::{Moment, Office};
use thread::{Asked, Job};

/// Instances that may wait for their identity; more wait for a place.
const WAITING: usize = 256;

/// What the issuer is made with.
#[derive(Debug, Clone)]
pub(super) struct Terms {
    /// The node's name.
    pub(super) node: String,
    /// Where the gateway's packets to instances come from: address tokens are bound to it.
    pub(super) from: IpAddr,
    /// How long certificates are good; they are renewed after two thirds of it.
    pub(super) lifetime: Duration,
}

/// Whom instances ask who they are.
pub(super) struct Desk {
    jobs: Sender<Job>,
    places: Arc<Semaphore>,
}

/// Opens the office. Gives where the node asks, and who the gateway is, as that changes.
///
/// # Errors
/// When no key can be made, or no thread.
pub(super) fn open(terms: Terms) -> Result<(Arc<Desk>, watch::Receiver<Caller>), UpError> {
    let now = Moment { at: Instant::now(), wall: SystemTime::now() };
    let (office, caller) = Office::open(terms, now).map_err(UpError::part("identities"))?;
    let jobs = thread::start(office).map_err(UpError::part("the issuer's thread"))?;
    Ok((Arc::new(Desk::new(jobs)), caller))
}

impl Desk {
    fn new(jobs: Sender<Job>) -> Self {
        Self { jobs, places: Arc::new(Semaphore::new(WAITING)) }
    }
}

impl Issuer for Desk {
    /// On one machine `auto` means TCP.
    fn serves(&self, transport: Transport) -> bool {
        matches!(transport, Transport::Quic | Transport::Tls13 | Transport::Tls12)
    }

    fn issue(&self, function: FunctionId, instance: InstanceId) -> BoxFuture<'static, Result<Identity, String>> {
        let (jobs, places) = (self.jobs.clone(), Arc::clone(&self.places));
        Box::pin(async move {
            let place = places.acquire_owned().await.map_err(|closed| closed.to_string())?;
            let (answer, issued) = oneshot::channel();
            let mut waiting = Waiting { issued, jobs };
            let _ = waiting.jobs.send(Job::Issue(Asked { function, instance, answer, place })); // a thread that has ended drops it
            (&mut waiting.issued).await.unwrap_or_else(|_| Err("the issuer has ended".to_owned()))
        })
    }

    fn edges(&self, callers: BTreeMap<FunctionId, Vec<FunctionId>>) {
        let _ = self.jobs.send(Job::Edges(callers)); // as above
    }

    fn answerer(&self, callee: &str, caller: SocketAddr) -> Option<Box<dyn Answerer>> {
        Some(Box::new(Half::new(callee, caller, self.jobs.clone())))
    }

    fn gone(&self, name: &str) {
        let _ = self.jobs.send(Job::Gone(name.to_owned())); // nobody is called any more by a process that ends
    }
}

/// Waits for its identity. Who ends before it has heard of it has that forgotten.
struct Waiting {
    issued: oneshot::Receiver<Result<Identity, String>>,
    jobs: Sender<Job>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.issued.close(); // from now on the thread sees that nobody hears it
        if let Ok(Ok(identity)) = self.issued.try_recv() {
            let _ = self.jobs.send(Job::Gone(identity.name.to_string()));
        }
    }
}

#[cfg(test)]
mod tests;
