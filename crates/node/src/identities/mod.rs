//! Who instances are, for callers on other machines, and whom they call directly.
//!
//! The node asks once for each instance whose function is called that way, beside its start, and hands over what it is given through the
//! instance's socket (`contract/identity.md`); what it says there is for the watchdog alone and opaque here. An instance has one name for
//! its life, and its successor another. An instance that may call others ([`callees`]) is told where they are, and has its handshakes with
//! them answered ([`talk`]).

mod callees;
mod halves;
mod line;
mod talk;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use nearpath_types::policy::Transport;
use nearpath_types::{FunctionId, InstanceAddr, InstanceId, Policy, Snapshot};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::direct::Direct;
use crate::machine::Machine;
use line::Line;
use talk::Talk;

/// Makes identities: the controller's authority, and whoever mints sessions.
pub trait Issuer: Send + Sync {
    /// Whether instances of a function that is called so need one.
    fn serves(&self, transport: Transport) -> bool;

    /// That of one instance, or in a sentence why there is none: callers then use HTTP. It comes beside the instance's start, which waits for it
    /// in the end.
    fn issue(&self, function: FunctionId, instance: InstanceId) -> BoxFuture<'static, Result<Identity, String>>;

    /// The instance of this name is gone: what was remembered of it can be forgotten.
    fn gone(&self, name: &str);

    /// Who may call each of the functions that are called by others, of all that is deployed; replaces what was said before.
    fn edges(&self, _callers: BTreeMap<FunctionId, Vec<FunctionId>>) {}

    /// The half of a handshake in memory that answers for the instance `callee` to one whose calls come from `caller`: the caller's half is in that
    /// instance's watchdog. Nothing: there is no such instance, or this issuer mints nothing.
    fn answerer(&self, _callee: &str, _caller: SocketAddr) -> Option<Box<dyn Answerer>> {
        None
    }
}

/// See [`Issuer::answerer`].
pub trait Answerer: Send {
    /// Takes the caller's datagrams, gives those for it. What comes of the handshake is on its way to the callee before this returns. Takes a few
    /// tenths of a millisecond of CPU time.
    fn step(&mut self, datagrams: &[Vec<u8>]) -> Step;
}

/// What a half says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Step {
    /// For the other half.
    pub datagrams: Vec<Vec<u8>>,
    /// There is no further step.
    pub done: bool,
}

/// One instance, as far as it matters whom it calls.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) function: FunctionId,
    pub(crate) instance: InstanceId,
    /// Where its calls come from; nothing: its calls are not picked up, so it is not told whom it may call.
    pub(crate) addr: Option<InstanceAddr>,
}

/// What is around it.
#[derive(Clone)]
pub(crate) struct Surroundings {
    pub(crate) snapshots: watch::Receiver<Arc<Snapshot>>,
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) direct: Direct,
}

/// Who an instance is.
#[derive(Debug)]
pub struct Identity {
    /// What callers call it.
    pub name: Arc<str>,
    /// Frames for the watchdog: the first is there at once, others come when something changes.
    pub frames: mpsc::Receiver<Vec<u8>>,
}

/// The issuer, if there is one.
#[derive(Clone, Default)]
pub struct Identities(Option<Arc<dyn Issuer>>);

impl Identities {
    /// From this issuer.
    pub fn from(issuer: Arc<dyn Issuer>) -> Self {
        Self(Some(issuer))
    }

    /// Whether instances of a function that is called so are told who they are.
    pub(crate) fn serve(&self, transport: Transport) -> bool {
        self.0.as_ref().is_some_and(|issuer| issuer.serves(transport))
    }

    /// Says who may call whom, for those that are called so. To be said before instances are told who they are.
    pub(crate) fn permit<'a>(&self, functions: impl Iterator<Item = (&'a FunctionId, &'a Policy)> + Clone) {
        let Some(issuer) = &self.0 else { return };
        let mut callers: BTreeMap<FunctionId, Vec<FunctionId>> = BTreeMap::new();
        let named: BTreeSet<_> =
            functions.clone().filter(|(_, policy)| issuer.serves(policy.transport)).map(|(id, _)| id).collect();
        for (caller, policy) in functions.filter(|(id, _)| named.contains(id)) {
            for callee in policy.calls.iter().filter(|callee| named.contains(callee)) {
                callers.entry(callee.clone()).or_default().push(caller.clone());
            }
        }
        issuer.edges(callers);
    }

    /// Says through `socket` who the instance is, and whatever changes of it; calls `known` before: what the instance says after it was told is
    /// heard after that. Ends with the instance; to be aborted when that is gone.
    pub(crate) async fn tell(
        self,
        caller: Caller,
        socket: OwnedFd,
        around: Surroundings,
        known: impl FnOnce(Result<Arc<str>, String>),
    ) {
        let Some(issuer) = self.0 else { return };
        let Identity { name, mut frames } = match issuer.issue(caller.function.clone(), caller.instance).await {
            Ok(identity) => identity,
            Err(why) => return known(Err(why)),
        };
        let _forget = Forget { issuer: Arc::clone(&issuer), name: Arc::clone(&name) };
        let Ok(mut line) = Line::new(socket) else { return };
        known(Ok(name));
        let Some(first) = frames.recv().await else { return std::future::pending().await };
        if line.write(&first).await.is_ok() {
            Talk::new(line, caller, issuer, around).go_on(frames).await; // until nobody reads any more: the instance is ending
        }
    }
}

/// A task that ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Telling(JoinHandle<()>);

impl Telling {
    pub(crate) fn begin(telling: impl Future<Output = ()> + Send + 'static) -> Self {
        Self(tokio::spawn(telling))
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Forget {
    issuer: Arc<dyn Issuer>,
    name: Arc<str>,
}

impl Drop for Forget {
    fn drop(&mut self) {
        self.issuer.gone(&self.name);
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Identities" } else { "no identities" })
    }
}

#[cfg(test)]
mod tests;
