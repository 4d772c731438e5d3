//! What the keeper has warm, for one instance.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::net::{AddressFamily, sockopt};

use super::decision::native_family;
use super::{SocketFamily, WarmSocket, WarmSource};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::pool::{ConnectionLease, ConnectionPool};
use nearpath_connpool::ready_slot::ReadySlot;
use nearpath_connpool::state::SocketId;

/// See the module. Destinations that the instance wants through IPv6 sockets have keys of their own, from the first such wish until this is dropped.
pub(crate) struct PoolWarmSource {
    pool: Rc<ConnectionPool>,
    v6_destinations: RefCell<HashMap<PoolKey, Rc<EgressDestination>>>,
}

impl PoolWarmSource {
    pub(crate) fn for_pool(keeper: &Rc<ConnectionPool>) -> Rc<Self> {
        Rc::new(Self {
            pool: Rc::clone(keeper),
            v6_destinations: RefCell::default(),
        })
    }

    fn for_family(
        &self,
        to: &Rc<EgressDestination>,
        family: SocketFamily,
    ) -> Rc<EgressDestination> {
        if family == native_family(to.visible_addr()) {
            return Rc::clone(to);
        }
        let known = self.v6_destinations.borrow().get(&to.key).cloned();
        known.unwrap_or_else(|| {
            let by_v6 = Rc::new(to.via_v6_sockets());
            self.v6_destinations
                .borrow_mut()
                .insert(to.key.clone(), Rc::clone(&by_v6));
            self.pool.retain_destination(&by_v6);
            by_v6
        })
    }
}

/// The stock that a node has, for one destination.
#[doc(hidden)] // for tests of the whole, with the node's own keeper
pub fn pool_warm_source(to: &Rc<EgressDestination>) -> Rc<dyn WarmSource> {
    let keeper = ConnectionPool::start();
    keeper.retain_destination(to);
    PoolWarmSource::for_pool(&keeper)
}

impl Drop for PoolWarmSource {
    fn drop(&mut self) {
        self.v6_destinations
            .take()
            .values()
            .for_each(|to| self.pool.release_destination(to));
    }
}

impl WarmSource for PoolWarmSource {
    fn take_warm(&self, to: &Rc<EgressDestination>, family: SocketFamily) -> Option<WarmSocket> {
        let to = self.for_family(to, family);
        if self
            .pool
            .next_has_other_family(&to, family == SocketFamily::V4)
        {
            return None; // the way out takes it
        }
        let lease = self.pool.take_warm(&to)?;
        warm_from_lease(lease, family)
            .inspect_err(|error| tracing::debug!(to = to.key.host_port, %error, "not to be given"))
            .ok()
    }

    fn ready_slot(&self, to: &Rc<EgressDestination>) -> Option<ReadySlot> {
        self.pool.ready_slot(to)
    }

    fn confirm_taken(&self, to: &Rc<EgressDestination>, socket: SocketId) -> Option<WarmSocket> {
        let lease = self.pool.confirm_taken(to, socket)?;
        warm_from_lease(lease, native_family(to.visible_addr()))
            .inspect_err(
                |error| tracing::debug!(to = to.key.host_port, %error, "it has ended already"),
            )
            .ok()
    }

    fn counters_for(&self, to: &Rc<EgressDestination>) -> Rc<DestinationCounters> {
        self.pool.counters_for(to)
    }
}

/// A name may have IPv6 addresses, which no IPv4 socket reaches.
fn warm_from_lease(lease: ConnectionLease, family: SocketFamily) -> io::Result<WarmSocket> {
    let ConnectionLease {
        stream,
        guard: gone,
    } = lease;
    let socket = OwnedFd::from(stream.into_std()?);
    match (sockopt::socket_domain(&socket)?, family) {
        (AddressFamily::INET, SocketFamily::V4) | (AddressFamily::INET6, SocketFamily::V6) => {
            WarmSocket::new(socket, gone)
        }
        _ => Err(io::Error::other("it is a socket of the other family")),
    }
}
