//! State of one ready instance, shared by all threads: its address and its open requests.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionServer, InstanceId, InstanceLocality, InstanceRoute};
use tokio::sync::Notify;

use super::udp_reachability::UdpReachability;

const WITHDRAWN_BIT: u32 = 1 << 31;

/// A ready instance. Once withdrawn, it stays withdrawn.
#[derive(Debug)]
pub(crate) struct InstanceEndpoint {
    /// Id of the instance.
    pub id: InstanceId,
    /// Address of its watchdog.
    pub addr: SocketAddr,
    /// Key of connection pools. Unlike `id`, never reused while the process lives.
    pub serial: u64,
    /// Machine on which the instance runs, relative to this node.
    pub locality: InstanceLocality,
    /// Transport that its callers must use.
    pub transport: CallTransport,
    /// Reachability over UDP.
    pub udp: UdpReachability,
    /// Server name in its certificate, once known; it does not change.
    server_name: OnceLock<Arc<str>>,
    /// The function's own server, once known; it does not change.
    server: OnceLock<Arc<FunctionServer>>,
    /// Set after a refusal, cleared by the next answer.
    is_suspect: AtomicBool,
    /// The instance is gone: connections that cannot notice that must be cut.
    is_gone: AtomicBool,
    /// Bit 31: withdrawn. Bits 0–30: open requests. A single word, so that each request is known
    /// to come before or after the withdrawal.
    request_count: AtomicU32,
    /// Notified when the last request of a withdrawn instance has ended.
    requests_ended: Notify,
}

impl InstanceEndpoint {
    /// Creates an endpoint for an instance.
    pub(crate) fn from_instance(instance: &InstanceRoute) -> Self {
        Self::new(
            instance.id,
            instance.addr.0,
            instance.locality,
            instance.transport,
        )
    }

    fn new(
        id: InstanceId,
        addr: SocketAddr,
        locality: InstanceLocality,
        transport: CallTransport,
    ) -> Self {
        static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);
        // Relaxed: only uniqueness matters, which the atomic addition gives by itself.
        let serial = NEXT_SERIAL.fetch_add(1, Ordering::Relaxed);
        let (udp, server_name, request_count) = (
            UdpReachability::default(),
            OnceLock::new(),
            AtomicU32::new(0),
        );
        let (is_suspect, is_gone) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            id,
            addr,
            serial,
            locality,
            transport,
            udp,
            server_name,
            server: OnceLock::new(),
            is_suspect,
            is_gone,
            request_count,
            requests_ended: Notify::new(),
        }
    }

    /// Returns the server name for QUIC and TLS; `None` without a certificate.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.server_name.get().map(|name| &**name)
    }

    /// Sets the server name when the instance has received its certificate.
    pub(crate) fn set_server_name(&self, name: Option<&Arc<str>>) {
        if let Some(name) = name {
            self.server_name.get_or_init(|| Arc::clone(name));
        }
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

    /// Marks the instance as gone.
    pub(crate) fn mark_gone(&self) {
        // Pairs with the acquire load in `is_gone`, so that a sweep sees the state before the
        // mark.
        self.is_gone.store(true, Ordering::Release);
    }

    /// Returns whether the instance is gone. After the removal of its function this is never
    /// known.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
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
        before & WITHDRAWN_BIT == 0
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

    /// Withdraws the instance. Returns its open requests the first time, then 0.
    pub(crate) fn withdraw(&self) -> u32 {
        let before = self.request_count.fetch_or(WITHDRAWN_BIT, Ordering::AcqRel);
        // Once: the caller returns so many permits to the gate, and must not do so twice.
        if before & WITHDRAWN_BIT == 0 {
            before
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawn_endpoint_takes_no_request_and_reports_its_count_once() {
        let (addr, locality) = ("127.0.0.1:1".parse().unwrap(), InstanceLocality::SameNode);
        let endpoint = InstanceEndpoint::new(InstanceId(1), addr, locality, CallTransport::Auto);
        assert!(endpoint.try_acquire(2) && endpoint.try_acquire(2) && !endpoint.try_acquire(2));
        assert!(endpoint.release());
        assert_eq!((endpoint.withdraw(), endpoint.withdraw()), (1, 0));
        assert!(!endpoint.try_acquire(2) && endpoint.request_count().is_none());
        assert!(!endpoint.release(), "the last one was forgiven at the gate");
    }

    #[tokio::test]
    async fn the_last_request_of_a_withdrawn_endpoint_ends_the_wait() {
        let (addr, locality) = ("127.0.0.1:1".parse().unwrap(), InstanceLocality::SameNode);
        let endpoint = InstanceEndpoint::new(InstanceId(1), addr, locality, CallTransport::Auto);
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
