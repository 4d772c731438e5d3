//! Who may go out, where to, and how much of it: pure but for counting.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::rc::Rc;

use nearpath_types::egress::Writes;
use nearpath_types::{Eip, FunctionId, InstanceId};
use tokio::sync::watch;

use crate::destination::{Caller, Destination};
use crate::keeper::Backends;
use crate::pool::Admission;

/// Connections that all instances of a function may have open at a time.
const OPEN: u32 = 4_096;
/// Those of them that may wait for a connection to their destination.
const WAITING: u32 = 1_024;

/// The instances that may go out, by their addresses.
#[derive(Default)]
pub(crate) struct Guests {
    by_address: HashMap<Ipv4Addr, Guest>,
    tallies: BTreeMap<FunctionId, Rc<Tally>>,
}

/// One instance.
struct Guest {
    caller: Rc<Caller>,
    tally: Rc<Tally>,
    backends: Rc<dyn Backends>,
    /// Nothing is sent; dropped with the instance.
    here: watch::Sender<()>,
}

/// What the instances of one function have.
#[derive(Debug, Default)]
struct Tally {
    open: Cell<u32>,
    waiting: Cell<u32>,
}

/// Leave to go out, for one connection.
pub(crate) struct Pass {
    pub(crate) caller: Rc<Caller>,
    pub(crate) to: Rc<Destination>,
    /// Where it gets connections.
    pub(crate) backends: Rc<dyn Backends>,
    /// Fails when the instance has ended.
    pub(crate) here: watch::Receiver<()>,
    pub(crate) waiting: Counted,
    _open: Counted,
}

impl Pass {
    /// Whether the connection goes on when its instance has ended, until what it wrote is delivered.
    pub(super) fn is_async(&self) -> bool {
        matches!(self.to.egress.writes, Writes::Async { .. })
    }
}

/// One more, until it is ended or dropped.
pub(crate) struct Counted {
    tally: Rc<Tally>,
    of: fn(&Tally) -> &Cell<u32>,
    counts: Cell<bool>,
}

/// Why somebody may not go out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Refusal {
    /// No instance has this address.
    #[error("nobody who may go out")]
    Stranger,
    /// It may, but not there.
    #[error("a connection to {1} was reset: {of} did not declare it; add it to its `egress`", of = .0.function)]
    Undeclared(Rc<Caller>, String),
    /// It has too many.
    #[error("a connection to {1} was reset: {of} has {OPEN} open, or {WAITING} that wait for their destination", of = .0.function)]
    Crowded(Rc<Caller>, String),
}

impl Refusal {
    pub(crate) fn caller(&self) -> Option<&Caller> {
        match self {
            Self::Stranger => None,
            Self::Undeclared(caller, _) | Self::Crowded(caller, _) => Some(caller),
        }
    }
}

impl Guests {
    /// Lets an instance out, to these destinations. One that has its address from before has ended.
    pub(crate) fn admit(&mut self, who: Admission, to: Vec<Destination>, backends: Rc<dyn Backends>) -> Rc<Caller> {
        let Admission { instance, function, chain, eip, .. } = who;
        self.tallies.retain(|_, tally| Rc::strong_count(tally) > 1);
        let tally = Rc::clone(self.tallies.entry(function.clone()).or_default());
        let destinations = to.into_iter().map(Rc::new).collect();
        let caller = Rc::new(Caller { instance, function, chain, eip, destinations });
        let guest = Guest { caller: Rc::clone(&caller), tally, backends, here: watch::Sender::new(()) };
        self.by_address.insert(eip.0, guest);
        caller
    }

    /// Ends an instance, and what it has open.
    pub(crate) fn leave(&mut self, instance: InstanceId, eip: Eip) -> Option<Rc<Caller>> {
        let same = self.by_address.get(&eip.0).is_some_and(|guest| guest.caller.instance == instance);
        let guest = same.then(|| self.by_address.remove(&eip.0)).flatten();
        guest.map(|guest| guest.caller)
    }

    /// Who has an address.
    pub(crate) fn caller(&self, eip: Eip) -> Option<Rc<Caller>> {
        self.by_address.get(&eip.0).map(|guest| Rc::clone(&guest.caller))
    }

    /// An instance of a function, and where it gets connections.
    pub(crate) fn any_of(&self, function: &FunctionId) -> Option<(Rc<Caller>, Rc<dyn Backends>)> {
        let found = self.by_address.values().find(|guest| guest.caller.function == *function)?;
        Some((Rc::clone(&found.caller), Rc::clone(&found.backends)))
    }

    /// Whether who comes from one address may go to the other.
    pub(crate) fn judge(&self, from: Ipv4Addr, to: SocketAddrV4) -> Result<Pass, Refusal> {
        let guest = self.by_address.get(&from).ok_or(Refusal::Stranger)?;
        let caller = Rc::clone(&guest.caller);
        let declared = |one: &&Rc<Destination>| one.stands == *to.ip() && one.egress.port == to.port();
        let Some(destination) = caller.destinations.iter().find(declared).cloned() else {
            let name = caller.destinations.iter().find(|one| one.stands == *to.ip()).map(|one| &one.egress.host);
            let called = name.map_or_else(|| to.to_string(), |name| format!("{name}:{}", to.port()));
            return Err(Refusal::Undeclared(caller, called));
        };
        if guest.tally.open.get() >= OPEN || guest.tally.waiting.get() >= WAITING {
            return Err(Refusal::Crowded(caller, destination.key.to.clone()));
        }
        let [open, waiting] = [(|tally| &tally.open) as fn(&Tally) -> &Cell<u32>, |tally| &tally.waiting];
        let count = |of| Counted::one(&guest.tally, of);
        let (here, waiting) = (guest.here.subscribe(), count(waiting));
        let backends = Rc::clone(&guest.backends);
        Ok(Pass { caller, to: destination, backends, here, waiting, _open: count(open) })
    }
}

impl Counted {
    fn one(tally: &Rc<Tally>, of: fn(&Tally) -> &Cell<u32>) -> Self {
        of(tally).set(of(tally).get() + 1);
        Self { tally: Rc::clone(tally), of, counts: Cell::new(true) }
    }

    pub(crate) fn end(&self) {
        if self.counts.replace(false) {
            let counter = (self.of)(&self.tally);
            counter.set(counter.get() - 1);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end();
    }
}
