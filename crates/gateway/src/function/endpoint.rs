//! One ready instance as all threads see it: where it is, and how many requests are at it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nearpath_types::policy::CallTransport;
use nearpath_types::{InstanceId, InstanceLocality, InstanceRoute};

use super::udp_reachability::UdpReachability;

const WITHDRAWN_BIT: u32 = 1 << 31;

/// An instance that was ready when it was made. Once withdrawn it stays so.
#[derive(Debug)]
pub(crate) struct InstanceEndpoint {
    /// The instance.
    pub id: InstanceId,
    /// Where its watchdog listens.
    pub addr: SocketAddr,
    /// Unlike `id`, never used twice while the process lives: the key of connection pools.
    pub serial: u64,
    /// On which machine it runs.
    pub locality: InstanceLocality,
    /// What its callers have to speak.
    pub transport: CallTransport,
    /// Whether it answers over UDP.
    pub udp: UdpReachability,
    /// What it is called where it shows a certificate, once that is known; it does not change.
    server_name: OnceLock<Arc<str>>,
    /// It has said of a call that it did not run it, and has answered none since.
    is_suspect: AtomicBool,
    /// Nothing is left of it: connections that do not notice that by themselves are to be cut.
    is_gone: AtomicBool,
    /// Bit 31: withdrawn. Below: requests at it. One word, so that each request knows for sure on which side of the
    /// withdrawal it is.
    request_count: AtomicU32,
}

impl InstanceEndpoint {
    /// An instance that nothing was sent to yet.
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
            udp: udp,
            server_name,
            is_suspect: is_suspect,
            is_gone: is_gone,
            request_count,
        }
    }

    /// What it is called over QUIC and TLS; `NoConnection`: it has no certificate.
    pub(crate) fn server_name(&self) -> Option<&str> {
        self.server_name.get().map(|name| &**name)
    }

    /// It was told who it is.
    pub(crate) fn set_server_name(&self, name: Option<&Arc<str>>) {
        if let Some(name) = name {
            self.server_name.get_or_init(|| Arc::clone(name));
        }
    }

    /// Whether what it gets may have to go elsewhere: worth a copy of each request.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect.load(Ordering::Relaxed)
    }

    /// It answered a call; or did not run it, and said so.
    pub(crate) fn note_answer(&self, has_run: bool) {
        if self.is_suspect() == has_run {
            self.is_suspect.store(!has_run, Ordering::Relaxed);
        }
    }

    /// Nothing is left of it.
    pub(crate) fn mark_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// Whether nothing is left of it. One whose function was removed is never known to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    /// Requests at it; `NoConnection` once it is withdrawn.
    pub(crate) fn request_count(&self) -> Option<u32> {
        let load = self.request_count.load(Ordering::Relaxed);
        (load & WITHDRAWN_BIT == 0).then_some(load)
    }

    /// Adds a request, unless it was withdrawn or has `limit` already.
    pub(crate) fn try_acquire(&self, limit: u32) -> bool {
        let step = |load: u32| (load & WITHDRAWN_BIT == 0 && load < limit).then_some(load + 1);
        self.request_count
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, step)
            .is_ok()
    }

    /// Ends a request. False: the instance was withdrawn meanwhile, and the request forgiven at the gate.
    pub(crate) fn release(&self) -> bool {
        self.request_count.fetch_sub(1, Ordering::AcqRel) & WITHDRAWN_BIT == 0
    }

    /// Lets nothing new in. Gives the number of requests still at it, the first time; then 0.
    pub(crate) fn withdraw(&self) -> u32 {
        let before = self.request_count.fetch_or(WITHDRAWN_BIT, Ordering::AcqRel);
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
}
