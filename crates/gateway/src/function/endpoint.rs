//! One ready instance as all threads see it: where it is, and how many requests are at it.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nearpath_types::policy::Transport;
use nearpath_types::{Instance, InstanceId, Locality};

use super::udp_reachability::Reach;

const WITHDRAWN: u32 = 1 << 31;

/// An instance that was ready when it was made. Once withdrawn it stays so.
#[derive(Debug)]
pub(crate) struct Endpoint {
    /// The instance.
    pub id: InstanceId,
    /// Where its watchdog listens.
    pub addr: SocketAddr,
    /// Unlike `id`, never used twice while the process lives: the key of connection pools.
    pub serial: u64,
    /// On which machine it runs.
    pub locality: Locality,
    /// What its callers have to speak.
    pub transport: Transport,
    /// Whether it answers over UDP.
    pub reach: Reach,
    /// What it is called where it shows a certificate, once that is known; it does not change.
    name: OnceLock<Arc<str>>,
    /// It has said of a call that it did not run it, and has answered none since.
    wary: AtomicBool,
    /// Nothing is left of it: connections that do not notice that by themselves are to be cut.
    gone: AtomicBool,
    /// Bit 31: withdrawn. Below: requests at it. One word, so that each request knows for sure on which side of the
    /// withdrawal it is.
    load: AtomicU32,
}

impl Endpoint {
    /// An instance that nothing was sent to yet.
    pub(crate) fn of(instance: &Instance) -> Self {
        Self::new(instance.id, instance.addr.0, instance.locality, instance.transport)
    }

    fn new(id: InstanceId, addr: SocketAddr, locality: Locality, transport: Transport) -> Self {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let (reach, name, load) = (Reach::default(), OnceLock::new(), AtomicU32::new(0));
        let (wary, gone) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { id, addr, serial, locality, transport, reach, name, wary, gone, load }
    }

    /// What it is called over QUIC and TLS; `None`: it has no certificate.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.get().map(|name| &**name)
    }

    /// It was told who it is.
    pub(crate) fn named(&self, name: Option<&Arc<str>>) {
        if let Some(name) = name {
            self.name.get_or_init(|| Arc::clone(name));
        }
    }

    /// Whether what it gets may have to go elsewhere: worth a copy of each request.
    pub(crate) fn is_wary(&self) -> bool {
        self.wary.load(Ordering::Relaxed)
    }

    /// It answered a call; or did not run it, and said so.
    pub(crate) fn answered(&self, ran: bool) {
        if self.is_wary() == ran {
            self.wary.store(!ran, Ordering::Relaxed);
        }
    }

    /// Nothing is left of it.
    pub(crate) fn end(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether nothing is left of it. One whose function was removed is never known to be gone.
    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Requests at it; `None` once it is withdrawn.
    pub(crate) fn load(&self) -> Option<u32> {
        let load = self.load.load(Ordering::Relaxed);
        (load & WITHDRAWN == 0).then_some(load)
    }

    /// Adds a request, unless it was withdrawn or has `limit` already.
    pub(crate) fn take(&self, limit: u32) -> bool {
        let step = |load: u32| (load & WITHDRAWN == 0 && load < limit).then_some(load + 1);
        self.load.fetch_update(Ordering::AcqRel, Ordering::Relaxed, step).is_ok()
    }

    /// Ends a request. False: the instance was withdrawn meanwhile, and the request forgiven at the gate.
    pub(crate) fn release(&self) -> bool {
        self.load.fetch_sub(1, Ordering::AcqRel) & WITHDRAWN == 0
    }

    /// Lets nothing new in. Gives the number of requests still at it, the first time; then 0.
    pub(crate) fn withdraw(&self) -> u32 {
        let before = self.load.fetch_or(WITHDRAWN, Ordering::AcqRel);
        if before & WITHDRAWN == 0 { before } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_withdrawn_endpoint_takes_nothing_and_forgives_once() {
        let (addr, locality) = ("127.0.0.1:1".parse().unwrap(), Locality::SameNode);
        let endpoint = Endpoint::new(InstanceId(1), addr, locality, Transport::Auto);
        assert!(endpoint.take(2) && endpoint.take(2) && !endpoint.take(2));
        assert!(endpoint.release());
        assert_eq!((endpoint.withdraw(), endpoint.withdraw()), (1, 0));
        assert!(!endpoint.take(2) && endpoint.load().is_none());
        assert!(!endpoint.release(), "the last one was forgiven at the gate");
    }
}
