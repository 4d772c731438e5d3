//! What the keeper has warm, for one instance.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::net::{AddressFamily, sockopt};

use super::decision::native;
use super::{Family, Stock, Warm};
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::destination::{Destination, Key};
use nearpath_connpool::pool::{Keeper, Lease};
use nearpath_connpool::ready_slot::Tray;
use nearpath_connpool::state::SocketId;

/// See the module. Destinations that the instance wants through IPv6 sockets have keys of their own, from the first such wish until this is dropped.
pub(crate) struct Shelf {
    keeper: Rc<Keeper>,
    by_v6: RefCell<HashMap<Key, Rc<Destination>>>,
}

impl Shelf {
    pub(crate) fn of(keeper: &Rc<Keeper>) -> Rc<Self> {
        Rc::new(Self { keeper: Rc::clone(keeper), by_v6: RefCell::default() })
    }

    fn destination(&self, to: &Rc<Destination>, family: Family) -> Rc<Destination> {
        if family == native(to.place()) {
            return Rc::clone(to);
        }
        let known = self.by_v6.borrow().get(&to.key).cloned();
        known.unwrap_or_else(|| {
            let by_v6 = Rc::new(to.by_v6_sockets());
            self.by_v6.borrow_mut().insert(to.key.clone(), Rc::clone(&by_v6));
            self.keeper.expect(&by_v6);
            by_v6
        })
    }
}

/// The stock that a node has, for one destination.
#[doc(hidden)] // for tests of the whole, with the node's own keeper
pub fn kept(to: &Rc<Destination>) -> Rc<dyn Stock> {
    let keeper = Keeper::start();
    keeper.expect(to);
    Shelf::of(&keeper)
}

impl Drop for Shelf {
    fn drop(&mut self) {
        self.by_v6.take().values().for_each(|to| self.keeper.expect_no_more(to));
    }
}

impl Stock for Shelf {
    fn take(&self, to: &Rc<Destination>, family: Family) -> Option<Warm> {
        let to = self.destination(to, family);
        if self.keeper.differs(&to, family == Family::V4) {
            return None; // the way out takes it
        }
        let lease = self.keeper.take(&to)?;
        warm(lease, family).inspect_err(|error| tracing::debug!(to = to.key.to, %error, "not to be given")).ok()
    }

    fn tray(&self, to: &Rc<Destination>) -> Option<Tray> {
        self.keeper.tray(to)
    }

    fn taken(&self, to: &Rc<Destination>, socket: SocketId) -> Option<Warm> {
        let lease = self.keeper.taken(to, socket)?;
        warm(lease, native(to.place()))
            .inspect_err(|error| tracing::debug!(to = to.key.to, %error, "it has ended already"))
            .ok()
    }

    fn ledger(&self, to: &Rc<Destination>) -> Rc<Ledger> {
        self.keeper.ledger(to)
    }
}

/// A name may have IPv6 addresses, which no IPv4 socket reaches.
fn warm(lease: Lease, family: Family) -> io::Result<Warm> {
    let Lease { stream, gone } = lease;
    let socket = OwnedFd::from(stream.into_std()?);
    match (sockopt::socket_domain(&socket)?, family) {
        (AddressFamily::INET, Family::V4) | (AddressFamily::INET6, Family::V6) => Warm::new(socket, gone),
        _ => Err(io::Error::other("it is a socket of the other family")),
    }
}
