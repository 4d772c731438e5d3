//! Who may go out, where to, and how much of it: pure but for counting.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use nearpath_types::egress::{Host, Writes};
use nearpath_types::{Eip, FunctionId, InstanceId};
use tokio::sync::watch;

use crate::EgressInstance;
use crate::handle::Admission;
use crate::names::wildcard::{Below, Seated, is_below};
use nearpath_connpool::destination::Destination;
use nearpath_connpool::pool::Backends;
use nearpath_dbproxy::Caller;

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
    caller: Rc<EgressInstance>,
    tally: Rc<Tally>,
    backends: Rc<dyn Backends>,
    /// Names below a declared one that it has asked for.
    below: Below,
    /// Those of them that it has connected to, by where it did.
    learnt: HashMap<SocketAddr, Rc<Destination>>,
    /// Nothing is sent; dropped with the instance.
    here: watch::Sender<()>,
    /// Nothing is sent; dropped when nothing that it wrote comes any more. Who still takes that has the other end.
    tail: watch::Sender<()>,
}

/// What the instances of one function have.
#[derive(Debug, Default)]
struct Tally {
    open: Cell<u32>,
    waiting: Cell<u32>,
}

/// What an instance had that has ended.
#[derive(Debug)]
pub(crate) struct Left {
    /// Where it went, or might have.
    pub(crate) had: Vec<Rc<Destination>>,
    /// Addresses that stood for names below a declared one.
    pub(crate) stood: Vec<Ipv4Addr>,
    /// Closed once all is taken that it wrote to destinations with `writes=async`. Dropped, it says that nothing more comes.
    pub(crate) tail: watch::Sender<()>,
}

/// Leave to go out, for one connection.
pub(crate) struct Pass {
    pub(crate) caller: Rc<EgressInstance>,
    pub(crate) to: Rc<Destination>,
    /// Where it gets connections.
    pub(crate) backends: Rc<dyn Backends>,
    /// Fails when the instance has ended.
    pub(crate) here: watch::Receiver<()>,
    /// Fails when nothing that the instance wrote can come any more; only where the connection goes on without it. The instance keeps its address and
    /// its routes for as long as somebody has this, a bounded time.
    pub(crate) tail: Cell<Option<watch::Receiver<()>>>,
    pub(crate) waiting: Counted,
    _open: Counted,
}

impl Pass {
    /// Whether the connection goes on when its instance has ended, until what it wrote is delivered.
    pub(crate) fn is_async(&self) -> bool {
        is_async(&self.to)
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
    #[error("a connection to {1} was reset: {of} did not declare it; add it to its `egress`", of = .0.caller.function)]
    Undeclared(Rc<EgressInstance>, String),
    /// It has too many.
    #[error("a connection to {1} was reset: {of} has {OPEN} open, or {WAITING} that wait for their destination", of = .0.caller.function)]
    Crowded(Rc<EgressInstance>, String),
}

impl Refusal {
    pub(crate) fn caller(&self) -> Option<&EgressInstance> {
        match self {
            Self::Stranger => None,
            Self::Undeclared(caller, _) | Self::Crowded(caller, _) => Some(caller),
        }
    }
}

impl Guests {
    /// Lets an instance out, to these destinations. One that has its address from before has ended.
    pub(crate) fn admit(
        &mut self,
        who: Admission,
        to: Vec<Destination>,
        backends: Rc<dyn Backends>,
    ) -> Rc<EgressInstance> {
        let Admission { instance, function, eip, .. } = who;
        self.tallies.retain(|_, tally| Rc::strong_count(tally) > 1);
        let tally = Rc::clone(self.tallies.entry(function.clone()).or_default());
        let destinations = to.into_iter().map(Rc::new).collect();
        let caller = Rc::new(EgressInstance { caller: Rc::new(Caller { instance, function }), eip, destinations });
        let (below, learnt, [here, tail]) = (Below::default(), HashMap::new(), [(); 2].map(watch::Sender::new));
        let guest = Guest { caller: Rc::clone(&caller), tally, backends, below, learnt, here, tail };
        self.by_address.insert(eip.0, guest);
        caller
    }

    /// Ends an instance, and what it has open.
    pub(crate) fn leave(&mut self, instance: InstanceId, eip: Eip) -> Option<Left> {
        let same = self.by_address.get(&eip.0).is_some_and(|guest| guest.caller.caller.instance == instance);
        let guest = same.then(|| self.by_address.remove(&eip.0)).flatten()?;
        let known = guest.caller.destinations.iter().filter(|to| !to.is_below()).cloned();
        let had = known.chain(guest.learnt.into_values()).collect();
        Some(Left { had, stood: guest.below.addresses().collect(), tail: guest.tail })
    }

    /// Who has an address, and what fails when it has ended.
    pub(crate) fn here(&self, eip: Eip) -> Option<(Rc<EgressInstance>, watch::Receiver<()>)> {
        self.by_address.get(&eip.0).map(|guest| (Rc::clone(&guest.caller), guest.here.subscribe()))
    }

    /// The address that stands for a name below a declared one, and what was reached by it under another name; `None`: there is none to be had, or
    /// the instance has ended.
    pub(crate) fn seat(
        &mut self,
        of: &EgressInstance,
        now: Instant,
        name: &str,
    ) -> Option<(Seated, Vec<Rc<Destination>>)> {
        let guest =
            self.by_address.get_mut(&of.eip.0).filter(|guest| guest.caller.caller.instance == of.caller.instance)?;
        let seated = guest.below.seat(now, name)?;
        let stale = guest.learnt.extract_if(|at, _| seated.emptied && at.ip() == seated.address);
        let stale = stale.map(|(_, to)| to).collect();
        Some((seated, stale))
    }

    /// What somebody goes to who connects to an address that stands for a name below a declared one, or has such a name's own: the first time.
    pub(crate) fn learn(&mut self, from: Ipv4Addr, to: SocketAddr, now: Instant) -> Option<Rc<Destination>> {
        let guest = self.by_address.get_mut(&from)?;
        let IpAddr::V4(at) = to.ip() else { return None };
        let name = guest.below.name_at(now, at).map(str::to_owned);
        if guest.destination(to).is_some() {
            return None;
        }
        let name = name.or_else(|| guest.name_at(at))?;
        let covers = |one: &&Rc<Destination>| match &one.egress.host {
            Host::Below(base) => one.egress.port == to.port() && is_below(&name, base),
            _ => false,
        };
        let covering = guest.caller.destinations.iter().filter(covers);
        let nearest = covering.max_by_key(|one| one.egress.host.to_string().len())?;
        let learnt = Rc::new(nearest.one_below(&name, at));
        guest.learnt.insert(to, Rc::clone(&learnt));
        Some(learnt)
    }

    /// Who has an address.
    pub(crate) fn caller(&self, eip: Eip) -> Option<Rc<EgressInstance>> {
        self.by_address.get(&eip.0).map(|guest| Rc::clone(&guest.caller))
    }

    /// An instance of a function, and where it gets connections.
    pub(crate) fn any_of(&self, function: &FunctionId) -> Option<(Rc<EgressInstance>, Rc<dyn Backends>)> {
        let found = self.by_address.values().find(|guest| guest.caller.caller.function == *function)?;
        Some((Rc::clone(&found.caller), Rc::clone(&found.backends)))
    }

    /// Whether who comes from one address may go to the other.
    pub(crate) fn judge(&self, from: Ipv4Addr, to: impl Into<SocketAddr>) -> Result<Pass, Refusal> {
        let to = to.into();
        let guest = self.by_address.get(&from).ok_or(Refusal::Stranger)?;
        let caller = Rc::clone(&guest.caller);
        let Some(destination) = guest.destination(to) else {
            let at = |one: &&Rc<Destination>| one.stands == to.ip();
            let name = caller.destinations.iter().chain(guest.learnt.values()).find(at).map(|one| &one.egress.host);
            let called = name.map_or_else(|| to.to_string(), |name| format!("{name}:{}", to.port()));
            return Err(Refusal::Undeclared(caller, called));
        };
        if guest.tally.open.get() >= OPEN || guest.tally.waiting.get() >= WAITING {
            return Err(Refusal::Crowded(caller, destination.key.to.clone()));
        }
        let [open, waiting] = [(|tally| &tally.open) as fn(&Tally) -> &Cell<u32>, |tally| &tally.waiting];
        let count = |of| Counted::one(&guest.tally, of);
        let (here, waiting) = (guest.here.subscribe(), count(waiting));
        let tail = Cell::new(is_async(&destination).then(|| guest.tail.subscribe()));
        let backends = Rc::clone(&guest.backends);
        Ok(Pass { caller, to: destination, backends, here, tail, waiting, _open: count(open) })
    }
}

fn is_async(to: &Destination) -> bool {
    matches!(to.egress.writes, Writes::Async { .. })
}

impl Guest {
    fn destination(&self, to: SocketAddr) -> Option<Rc<Destination>> {
        let declared = self.caller.destinations.iter().find(|one| one.place() == to);
        declared.or_else(|| self.learnt.get(&to)).cloned()
    }

    /// The declared name that an address stands for.
    fn name_at(&self, at: Ipv4Addr) -> Option<String> {
        self.caller.destinations.iter().find_map(|one| match &one.egress.host {
            Host::Name(name) if one.stands == at => Some(name.clone()),
            _ => None,
        })
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
