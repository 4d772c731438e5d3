//! Sockmap routers of domains whose descriptors the kernel delivers (`nearpath.io/delivery:
//! sockmap`), and their counters.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nearpath_daemon::metrics::{MetricsRegistry, encode_totals};
use nearpath_domain::EndpointId;
use nearpath_domain::node_side;
use nearpath_kernel::bpf::{SockmapCounters, SockmapRouter};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

/// All sockmap routers of this node. Clones share their state.
#[derive(Debug, Clone, Default)]
pub(crate) struct SockmapRouters(Arc<Mutex<RouterTotals>>);

/// Living routers, and the counters of ended ones.
#[derive(Debug, Default)]
struct RouterTotals {
    live: Vec<Weak<DomainRouter>>,
    past: SockmapCounters,
}

/// The router of one domain.
#[derive(Debug)]
struct DomainRouter {
    router: SockmapRouter,
    routers: SockmapRouters,
}

impl SockmapRouters {
    /// Creates an empty set and adds its counters to a registry.
    pub(crate) fn new(registry: &MetricsRegistry) -> Self {
        let routers = Self::default();
        registry.with(|r| r.register_collector(Box::new(routers.clone())));
        routers
    }

    /// Opens a router for a new domain.
    ///
    /// # Errors
    /// Names the missing facility of this machine or build.
    pub(crate) fn open_router(&self) -> io::Result<Arc<dyn node_side::SockmapExchange>> {
        let domain_router = Arc::new(DomainRouter {
            router: SockmapRouter::create()?,
            routers: self.clone(),
        });
        // Weak, so that the set does not keep a domain's maps alive.
        self.with_totals(|totals| totals.live.push(Arc::downgrade(&domain_router)));
        Ok(domain_router)
    }

    fn read_counters(&self) -> SockmapCounters {
        // Read outside the lock: dropping the last reference to a router takes the lock.
        let (live, past) = self.with_totals(|totals| (totals.live.clone(), totals.past));
        let live = live
            .iter()
            .filter_map(Weak::upgrade)
            .map(|domain_router| domain_router.router.read_counters());
        live.fold(past, add_counters)
    }

    fn with_totals<T>(&self, read: impl FnOnce(&mut RouterTotals) -> T) -> T {
        read(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn add_counters(a: SockmapCounters, b: SockmapCounters) -> SockmapCounters {
    SockmapCounters {
        delivered: a.delivered + b.delivered,
        denied: a.denied + b.denied,
        absent: a.absent + b.absent,
        malformed: a.malformed + b.malformed,
    }
}

impl Drop for DomainRouter {
    fn drop(&mut self) {
        let counts = self.router.read_counters();
        self.routers.with_totals(|totals| {
            // The dropped router's own weak reference is dead by now.
            totals
                .live
                .retain(|domain_router| domain_router.strong_count() > 0);
            totals.past = add_counters(totals.past, counts);
        });
    }
}

impl node_side::SockmapExchange for DomainRouter {
    fn create_sockets(&self, endpoint: EndpointId) -> io::Result<[OwnedFd; 2]> {
        self.router
            .add_endpoint(endpoint.get())
            .map(|sockets| [sockets.endpoint, sockets.node])
    }

    fn remove_endpoint(&self, endpoint: EndpointId) {
        self.router.remove_endpoint(endpoint.get());
    }

    fn permit_channel(&self, from: EndpointId, channel: u32, to: EndpointId) -> io::Result<()> {
        self.router.allow_channel(from.get(), channel, to.get())
    }

    fn revoke_channel(&self, from: EndpointId, channel: u32) {
        self.router.revoke_channel(from.get(), channel);
    }
}

impl Collector for SockmapRouters {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let SockmapCounters {
            delivered,
            denied,
            absent,
            malformed,
        } = self.read_counters();
        let not_permitted = denied + malformed;
        let totals = [
            (
                "nearpath_descriptors_delivered",
                "Descriptors delivered by the kernel",
                delivered,
            ),
            (
                "nearpath_descriptors_denied",
                "Descriptors that the sender may not send, or malformed ones",
                not_permitted,
            ),
            (
                "nearpath_descriptors_absent",
                "Descriptors to an endpoint that is gone",
                absent,
            ),
        ];
        encode_totals(&mut encoder, &totals)
    }
}
