//! Warm sockets of the connection pool for one instance.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::rc::Rc;

use nearpath_types::FunctionId;
use rustix::net::{AddressFamily, sockopt};

use super::decision::native_family;
use super::{SocketFamily, WarmSocket, WarmSource};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::{EgressDestination, PoolKey};
use nearpath_connpool::pool::{ConnectionLease, ConnectionPool};
use nearpath_connpool::ready_slot::ReadySlot;
use nearpath_connpool::state::SocketId;

/// Warm sockets of the pool. Destinations requested through IPv6 sockets get their own keys, from
/// the first such request until this is dropped.
pub(crate) struct PoolWarmSource {
    pool: Rc<ConnectionPool>,
    /// The function whose instance connects.
    function: FunctionId,
    v6_destinations: RefCell<HashMap<PoolKey, Rc<EgressDestination>>>,
}

impl PoolWarmSource {
    pub(crate) fn new(pool: &Rc<ConnectionPool>, function: FunctionId) -> Rc<Self> {
        Rc::new(Self {
            pool: Rc::clone(pool),
            function,
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
        let existing = self.v6_destinations.borrow().get(&to.key).cloned();
        existing.unwrap_or_else(|| {
            let v6_destination = Rc::new(to.via_v6_sockets());
            self.v6_destinations
                .borrow_mut()
                .insert(to.key.clone(), Rc::clone(&v6_destination));
            // Retained until the instance ends, so that later requests find warm sockets.
            self.pool.retain_destination(&v6_destination);
            v6_destination
        })
    }
}

/// Returns the source that a node uses, for one destination of a function.
#[doc(hidden)] // for integration tests with the node's own pool
pub fn pool_warm_source(to: &Rc<EgressDestination>, function: FunctionId) -> Rc<dyn WarmSource> {
    let pool = ConnectionPool::start();
    pool.retain_destination(to);
    PoolWarmSource::new(&pool, function)
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
        // The name may resolve to the other family, and a socket cannot change its family. The
        // egress proxy carries the connection then.
        if self
            .pool
            .next_has_other_family(&to, family == SocketFamily::V4)
        {
            return None;
        }
        let lease = self.pool.take_warm(&to)?;
        hand_out(&to, lease, family)
    }

    fn connect_near<'a>(
        &'a self,
        to: &'a Rc<EgressDestination>,
        family: SocketFamily,
    ) -> Pin<Box<dyn Future<Output = Option<WarmSocket>> + 'a>> {
        let to = self.for_family(to, family);
        Box::pin(async move {
            let lease = self.pool.connect_near(&self.function, &to).await?;
            hand_out(&to, lease, family)
        })
    }

    fn ready_slot(&self, to: &Rc<EgressDestination>) -> Option<ReadySlot> {
        self.pool.ready_slot(to)
    }

    fn confirm_taken(&self, to: &Rc<EgressDestination>, socket: SocketId) -> Option<WarmSocket> {
        let lease = self.pool.confirm_taken(to, socket)?;
        warm_from_lease(lease, native_family(to.visible_addr()))
            .inspect_err(
                |error| tracing::debug!(to = to.key.host_port, %error, "taken socket has ended already"),
            )
            .ok()
    }

    fn counters_for(&self, to: &Rc<EgressDestination>) -> Rc<DestinationCounters> {
        self.pool.counters_for(to)
    }
}

fn hand_out(
    to: &EgressDestination,
    lease: ConnectionLease,
    family: SocketFamily,
) -> Option<WarmSocket> {
    warm_from_lease(lease, family)
        .inspect_err(|error| tracing::debug!(to = to.key.host_port, %error, "warm socket cannot be handed over"))
        .ok()
}

/// Checks the family of a leased socket. A name may have IPv6 addresses only, which no IPv4 socket
/// reaches.
fn warm_from_lease(lease: ConnectionLease, family: SocketFamily) -> io::Result<WarmSocket> {
    let ConnectionLease { stream, guard } = lease;
    // Leaves the runtime, because the descriptor goes to another process.
    let socket = OwnedFd::from(stream.into_std()?);
    match (sockopt::socket_domain(&socket)?, family) {
        (AddressFamily::INET, SocketFamily::V4) | (AddressFamily::INET6, SocketFamily::V6) => {
            WarmSocket::new(socket, guard)
        }
        _ => Err(io::Error::other("the socket has the other address family")),
    }
}
