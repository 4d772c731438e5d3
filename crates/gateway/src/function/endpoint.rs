//! State of one place where a function's requests run, shared by all threads: a ready instance here, or
//! another node with instances.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionLoad, FunctionServer, InstanceId, InstanceRoute, NodeName};
use tokio::sync::Notify;

use super::dial_target::DialTarget;

const WITHDRAWN_BIT: u32 = 1 << 31;

/// Identity of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EndpointId {
    /// Instance of this node.
    Instance(InstanceId),
    /// Another node, which chooses an instance itself.
    Node(NodeName),
}

impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(id) => write!(f, "instance {id}"),
            Self::Node(name) => write!(f, "node {name}"),
        }
    }
}

/// A place where a function's requests run. Once withdrawn, it stays withdrawn.
#[derive(Debug)]
pub(crate) struct FunctionEndpoint {
    /// Identity of the endpoint.
    pub id: EndpointId,
    /// The other end of connections. All functions of a node share one.
    pub target: Arc<DialTarget>,
    /// Transport that its callers must use.
    pub transport: CallTransport,
    /// The function's own server, once known; it does not change.
    server: OnceLock<Arc<FunctionServer>>,
    /// Ready instances that a node has reported.
    reported_ready: AtomicU32,
    /// Requests that a node has reported, of all gateways.
    reported_requests: AtomicU32,
    /// Set after a refusal, cleared by the next answer.
    is_suspect: AtomicBool,
    /// Bit 31: withdrawn. Bits 0–30: open requests. A single word, so that each request is known
    /// to come before or after the withdrawal.
    request_count: AtomicU32,
    /// Notified when the last request of a withdrawn instance has ended.
    requests_ended: Notify,
}

impl FunctionEndpoint {
    /// Creates an endpoint for an instance of this node.
    pub(crate) fn for_instance(instance: &InstanceRoute) -> Self {
        let target = DialTarget::for_instance(instance.addr.0);
        let id = EndpointId::Instance(instance.id);
        Self::new(id, target.into(), instance.transport)
    }

    /// Creates an endpoint for the instances of another node.
    pub(crate) fn for_node(name: NodeName, target: Arc<DialTarget>) -> Self {
        Self::new(EndpointId::Node(name), target, CallTransport::Auto)
    }

    fn new(id: EndpointId, target: Arc<DialTarget>, transport: CallTransport) -> Self {
        Self {
            id,
            target,
            transport,
            server: OnceLock::new(),
            reported_ready: AtomicU32::new(0),
            reported_requests: AtomicU32::new(0),
            is_suspect: AtomicBool::new(false),
            request_count: AtomicU32::new(0),
            requests_ended: Notify::new(),
        }
    }

    /// Returns the instance; `None` for a node.
    pub(crate) fn instance(&self) -> Option<InstanceId> {
        match self.id {
            EndpointId::Instance(id) => Some(id),
            EndpointId::Node(_) => None,
        }
    }

    /// Returns whether another node delivers the requests.
    pub(crate) fn is_remote(&self) -> bool {
        self.target.node().is_some()
    }

    /// Sets the server name when the instance has received its certificate.
    pub(crate) fn set_server_name(&self, name: Option<&Arc<str>>) {
        name.into_iter()
            .for_each(|name| self.target.set_server_name(name));
    }

    /// Returns the function's own server, if calls may go to it without the watchdog.
    pub(crate) fn server(&self) -> Option<&Arc<FunctionServer>> {
        self.server.get()
    }

    /// Sets the function's own server when the node has opened its network.
    pub(crate) fn set_server(&self, server: Option<&Arc<FunctionServer>>) {
        if let Some(server) = server {
            self.server.get_or_init(|| Arc::clone(server));
        }
    }

    /// Sets the last report of another node.
    pub(crate) fn set_load(&self, load: FunctionLoad) {
        // Relaxed in both methods: the numbers are estimates, and nothing else depends on them.
        self.reported_ready.store(load.ready, Ordering::Relaxed);
        self.reported_requests
            .store(load.requests, Ordering::Relaxed);
    }

    /// Returns the load of another node: its last report, and at least this gateway's own requests.
    pub(crate) fn load(&self) -> FunctionLoad {
        let own = self.request_count().unwrap_or(u32::MAX);
        FunctionLoad {
            ready: self.reported_ready.load(Ordering::Relaxed),
            requests: self.reported_requests.load(Ordering::Relaxed).max(own),
        }
    }

    /// Returns whether a refusal is likely, which makes a copy of each request worthwhile.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// Notes whether the instance ran a call or refused it.
    pub(crate) fn note_answer(&self, has_run: bool) {
        // Written on a change only: a store for each answer would move the cache line between
        // cores.
        if self.is_suspect() == has_run {
            self.is_suspect.store(!has_run, Ordering::Relaxed);
        }
    }

    /// Returns whether the instance gets no further requests.
    pub(crate) fn is_withdrawn(&self) -> bool {
        self.request_count().is_none()
    }

    /// Returns the open requests; `None` once withdrawn.
    pub(crate) fn request_count(&self) -> Option<u32> {
        // Relaxed: the count only guides the choice; `try_acquire` decides.
        let load = self.request_count.load(Ordering::Relaxed);
        (load & WITHDRAWN_BIT == 0).then_some(load)
    }

    /// Adds a request, unless the instance is withdrawn or has `limit` requests.
    pub(crate) fn try_acquire(&self, limit: u32) -> bool {
        let step = |load: u32| (load & WITHDRAWN_BIT == 0 && load < limit).then_some(load + 1);
        // AcqRel pairs with `withdraw`: a request is counted either before the withdrawal or not
        // at all.
        self.request_count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
            .is_ok()
    }

    /// Ends a request. False: the instance was withdrawn meanwhile, which has returned the permit
    /// already.
    pub(crate) fn release(&self) -> bool {
        let before = self.request_count.fetch_sub(1, Ordering::AcqRel);
        if before == WITHDRAWN_BIT | 1 {
            self.requests_ended.notify_one();
        }
        // The permits of requests at other nodes are returned by their ends alone.
        before & WITHDRAWN_BIT == 0 || self.is_remote()
    }

    /// Returns whether requests are open, withdrawn or not.
    pub(crate) fn has_requests(&self) -> bool {
        // Acquire pairs with `release`: whoever sees no request sees the ends of all.
        self.request_count.load(Ordering::Acquire) & !WITHDRAWN_BIT > 0
    }

    /// Waits for the end of the open requests of a withdrawn instance, for one caller at a time.
    pub(crate) async fn wait_requests_ended(&self) {
        // `notify_one` stores one permit, so an end between the check and the wait is not lost.
        while self.has_requests() {
            self.requests_ended.notified().await;
        }
    }

    /// Withdraws the endpoint. Returns the permits to give back to the gate: the open requests of an
    /// instance the first time, then 0.
    pub(crate) fn withdraw(&self) -> u32 {
        let before = self.request_count.fetch_or(WITHDRAWN_BIT, Ordering::AcqRel);
        if !self.is_remote() {
            self.target.mark_withdrawn();
        }
        // Once: the caller returns so many permits to the gate, and must not do so twice.
        if before & WITHDRAWN_BIT == 0 && !self.is_remote() {
            before
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::PeerNode;

    fn instance_endpoint() -> FunctionEndpoint {
        let target = DialTarget::for_instance("127.0.0.1:1".parse().unwrap());
        let id = EndpointId::Instance(InstanceId(1));
        FunctionEndpoint::new(id, target.into(), CallTransport::Auto)
    }

    #[test]
    fn requests_at_another_node_keep_their_permits() {
        let (name, addr) = ("b".parse().unwrap(), "192.0.2.1:8444".parse().unwrap());
        let target = DialTarget::for_node(&PeerNode {
            name,
            addr,
            incarnation: 1,
        });
        let endpoint = FunctionEndpoint::for_node("b".parse().unwrap(), target.into());
        assert!(endpoint.try_acquire(1));
        assert_eq!(endpoint.withdraw(), 0);
        assert!(endpoint.release() && !endpoint.try_acquire(1));
        assert!(!endpoint.target.is_withdrawn(), "its other functions go on");
    }

    #[test]
    fn the_load_of_a_node_is_at_least_what_this_gateway_has_sent() {
        let (name, addr) = ("b".parse().unwrap(), "192.0.2.1:8444".parse().unwrap());
        let target = DialTarget::for_node(&PeerNode {
            name,
            addr,
            incarnation: 1,
        });
        let endpoint = FunctionEndpoint::for_node("b".parse().unwrap(), target.into());
        let load = |requests| FunctionLoad { ready: 2, requests };
        endpoint.set_load(load(1));
        assert!(endpoint.try_acquire(9) && endpoint.try_acquire(9));
        assert_eq!(endpoint.load(), load(2));
        endpoint.set_load(load(5));
        assert_eq!(endpoint.load(), load(5));
    }

    #[test]
    fn a_withdrawn_endpoint_takes_no_request_and_reports_its_count_once() {
        let endpoint = instance_endpoint();
        assert!(endpoint.try_acquire(2) && endpoint.try_acquire(2) && !endpoint.try_acquire(2));
        assert!(endpoint.release());
        assert_eq!((endpoint.withdraw(), endpoint.withdraw()), (1, 0));
        assert!(!endpoint.try_acquire(2) && endpoint.request_count().is_none());
        assert!(!endpoint.release(), "the last one was forgiven at the gate");
    }

    #[tokio::test]
    async fn the_last_request_of_a_withdrawn_endpoint_ends_the_wait() {
        let endpoint = instance_endpoint();
        assert!(endpoint.try_acquire(2) && endpoint.try_acquire(2));
        endpoint.withdraw();
        let mut waiting = std::pin::pin!(endpoint.wait_requests_ended());
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        endpoint.release();
        assert!(futures_util::poll!(waiting.as_mut()).is_pending());
        endpoint.release();
        waiting.await;
    }
}
