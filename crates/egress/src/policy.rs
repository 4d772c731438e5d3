//! Who may go out, where to, and how much of it: pure but for counting.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use nearpath_types::egress::{EgressHost, WriteMode};
use nearpath_types::{Eip, FunctionId, InstanceId};
use tokio::sync::watch;

use crate::EgressInstance;
use crate::handle::AdmissionRequest;
use crate::names::wildcard::{AssignedAddress, WildcardNames, is_subdomain};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::pool::ConnectionSource;
use nearpath_dbproxy::ClientInstance;

/// Connections that all instances of a function may have open at a time.
const OPEN: u32 = 4_096;
/// Those of them that may wait for a connection to their destination.
const WAITING: u32 = 1_024;

/// The instances that may go out, by their addresses.
#[derive(Default)]
pub(crate) struct EgressPolicy {
    by_address: HashMap<Ipv4Addr, InstanceEntry>,
    counts_by_function: BTreeMap<FunctionId, Rc<ConnectionCounts>>,
}

/// One instance.
struct InstanceEntry {
    instance: Rc<EgressInstance>,
    counts: Rc<ConnectionCounts>,
    source: Rc<dyn ConnectionSource>,
    /// Names below a declared one that it has asked for.
    wildcard_names: WildcardNames,
    /// Those of them that it has connected to, by where it did.
    learned: HashMap<SocketAddr, Rc<EgressDestination>>,
    /// Nothing is sent; dropped with the instance.
    alive: watch::Sender<()>,
    /// Nothing is sent; dropped when nothing that it wrote comes any more. Who still takes that has the other end.
    writes_expected: watch::Sender<()>,
}

/// What the instances of one function have.
#[derive(Debug, Default)]
struct ConnectionCounts {
    open: Cell<u32>,
    waiting: Cell<u32>,
}

/// What an instance had that has ended.
#[derive(Debug)]
pub(crate) struct ReleasedInstance {
    /// Where it went, or might have.
    pub(crate) destinations: Vec<Rc<EgressDestination>>,
    /// Addresses that stood for names below a declared one.
    pub(crate) wildcard_addresses: Vec<Ipv4Addr>,
    /// Closed once all is taken that it wrote to destinations with `writes=async`. Dropped, it says that nothing more comes.
    pub(crate) writes_expected: watch::Sender<()>,
}

/// Leave to go out, for one connection.
pub(crate) struct ConnectionPermit {
    pub(crate) instance: Rc<EgressInstance>,
    pub(crate) destination: Rc<EgressDestination>,
    /// Where it gets connections.
    pub(crate) source: Rc<dyn ConnectionSource>,
    /// Fails when the instance has ended.
    pub(crate) alive: watch::Receiver<()>,
    /// Fails when nothing that the instance wrote can come any more; only where the connection goes on without it. The instance keeps its address and
    /// its routes for as long as somebody has this, a bounded time.
    pub(crate) writes_expected: Cell<Option<watch::Receiver<()>>>,
    pub(crate) waiting_guard: CountGuard,
    _open_guard: CountGuard,
}

impl ConnectionPermit {
    /// Whether the connection goes on when its instance has ended, until what it wrote is delivered.
    pub(crate) fn has_async_writes(&self) -> bool {
        has_async_writes(&self.destination)
    }
}

/// One more, until it is ended or dropped.
pub(crate) struct CountGuard {
    counts: Rc<ConnectionCounts>,
    counter: fn(&ConnectionCounts) -> &Cell<u32>,
    is_counted: Cell<bool>,
}

/// Why somebody may not go out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EgressRefusal {
    /// No instance has this address.
    #[error("nobody who may go out")]
    UnknownInstance,
    /// It may, but not there.
    #[error("a connection to {1} was reset: {of} did not declare it; add it to its `egress`", of = .0.caller.function)]
    Undeclared(Rc<EgressInstance>, String),
    /// It has too many.
    #[error("a connection to {1} was reset: {of} has {OPEN} open, or {WAITING} that wait for their destination", of = .0.caller.function)]
    TooManyConnections(Rc<EgressInstance>, String),
}

impl EgressRefusal {
    pub(crate) fn instance(&self) -> Option<&EgressInstance> {
        match self {
            Self::UnknownInstance => None,
            Self::Undeclared(caller, _) | Self::TooManyConnections(caller, _) => Some(caller),
        }
    }
}

impl EgressPolicy {
    /// Lets an instance out, to these destinations. One that has its address from before has ended.
    pub(crate) fn admit_instance(
        &mut self,
        who: AdmissionRequest,
        to: Vec<EgressDestination>,
        backends: Rc<dyn ConnectionSource>,
    ) -> Rc<EgressInstance> {
        let AdmissionRequest {
            instance,
            function,
            eip,
            ..
        } = who;
        self.counts_by_function
            .retain(|_, tally| Rc::strong_count(tally) > 1);
        let tally = Rc::clone(self.counts_by_function.entry(function.clone()).or_default());
        let destinations = to.into_iter().map(Rc::new).collect();
        let caller = Rc::new(EgressInstance {
            caller: Rc::new(ClientInstance { instance, function }),
            eip,
            destinations,
        });
        let (below, learnt, [here, tail]) = (
            WildcardNames::default(),
            HashMap::new(),
            [(); 2].map(watch::Sender::new),
        );
        let guest = InstanceEntry {
            instance: Rc::clone(&caller),
            counts: tally,
            source: backends,
            wildcard_names: below,
            learned: learnt,
            alive: here,
            writes_expected: tail,
        };
        self.by_address.insert(eip.0, guest);
        caller
    }

    /// Ends an instance, and what it has open.
    pub(crate) fn remove_instance(
        &mut self,
        instance: InstanceId,
        eip: Eip,
    ) -> Option<ReleasedInstance> {
        let same = self
            .by_address
            .get(&eip.0)
            .is_some_and(|guest| guest.instance.caller.instance == instance);
        let guest = same.then(|| self.by_address.remove(&eip.0)).flatten()?;
        let known = guest
            .instance
            .destinations
            .iter()
            .filter(|to| !to.is_wildcard())
            .cloned();
        let had = known.chain(guest.learned.into_values()).collect();
        Some(ReleasedInstance {
            destinations: had,
            wildcard_addresses: guest.wildcard_names.addresses().collect(),
            writes_expected: guest.writes_expected,
        })
    }

    /// Who has an address, and what fails when it has ended.
    pub(crate) fn find_alive(&self, eip: Eip) -> Option<(Rc<EgressInstance>, watch::Receiver<()>)> {
        self.by_address
            .get(&eip.0)
            .map(|guest| (Rc::clone(&guest.instance), guest.alive.subscribe()))
    }

    /// The address that stands for a name below a declared one, and what was reached by it under another name; `NoConnection`: there is none to be had, or
    /// the instance has ended.
    pub(crate) fn assign_wildcard_address(
        &mut self,
        of: &EgressInstance,
        now: Instant,
        name: &str,
    ) -> Option<(AssignedAddress, Vec<Rc<EgressDestination>>)> {
        let guest = self
            .by_address
            .get_mut(&of.eip.0)
            .filter(|guest| guest.instance.caller.instance == of.caller.instance)?;
        let seated = guest.wildcard_names.assign_address(now, name)?;
        let stale = guest
            .learned
            .extract_if(|at, _| seated.was_reassigned && at.ip() == seated.address);
        let stale = stale.map(|(_, to)| to).collect();
        Some((seated, stale))
    }

    /// What somebody goes to who connects to an address that stands for a name below a declared one, or has such a name's own: the first time.
    pub(crate) fn learn_destination(
        &mut self,
        from: Ipv4Addr,
        to: SocketAddr,
        now: Instant,
    ) -> Option<Rc<EgressDestination>> {
        let guest = self.by_address.get_mut(&from)?;
        let IpAddr::V4(at) = to.ip() else { return None };
        let name = guest.wildcard_names.name_of(now, at).map(str::to_owned);
        if guest.find_destination(to).is_some() {
            return None;
        }
        let name = name.or_else(|| guest.declared_name_at(at))?;
        let covers = |one: &&Rc<EgressDestination>| match &one.egress.host {
            EgressHost::Below(base) => one.egress.port == to.port() && is_subdomain(&name, base),
            _ => false,
        };
        let covering = guest.instance.destinations.iter().filter(covers);
        let nearest = covering.max_by_key(|one| one.egress.host.to_string().len())?;
        let learnt = Rc::new(nearest.for_wildcard_name(&name, at));
        guest.learned.insert(to, Rc::clone(&learnt));
        Some(learnt)
    }

    /// Who has an address.
    pub(crate) fn instance_at(&self, eip: Eip) -> Option<Rc<EgressInstance>> {
        self.by_address
            .get(&eip.0)
            .map(|guest| Rc::clone(&guest.instance))
    }

    /// An instance of a function, and where it gets connections.
    pub(crate) fn any_instance_of(
        &self,
        function: &FunctionId,
    ) -> Option<(Rc<EgressInstance>, Rc<dyn ConnectionSource>)> {
        let found = self
            .by_address
            .values()
            .find(|guest| guest.instance.caller.function == *function)?;
        Some((Rc::clone(&found.instance), Rc::clone(&found.source)))
    }

    /// Whether who comes from one address may go to the other.
    pub(crate) fn check_connection(
        &self,
        from: Ipv4Addr,
        to: impl Into<SocketAddr>,
    ) -> Result<ConnectionPermit, EgressRefusal> {
        let to = to.into();
        let guest = self
            .by_address
            .get(&from)
            .ok_or(EgressRefusal::UnknownInstance)?;
        let caller = Rc::clone(&guest.instance);
        let Some(destination) = guest.find_destination(to) else {
            let at = |one: &&Rc<EgressDestination>| one.visible_ip == to.ip();
            let name = caller
                .destinations
                .iter()
                .chain(guest.learned.values())
                .find(at)
                .map(|one| &one.egress.host);
            let called =
                name.map_or_else(|| to.to_string(), |name| format!("{name}:{}", to.port()));
            return Err(EgressRefusal::Undeclared(caller, called));
        };
        if guest.counts.open.get() >= OPEN || guest.counts.waiting.get() >= WAITING {
            return Err(EgressRefusal::TooManyConnections(
                caller,
                destination.key.host_port.clone(),
            ));
        }
        let [open, waiting] = [
            (|tally| &tally.open) as fn(&ConnectionCounts) -> &Cell<u32>,
            |tally| &tally.waiting,
        ];
        let count = |of| CountGuard::add_one(&guest.counts, of);
        let (here, waiting) = (guest.alive.subscribe(), count(waiting));
        let tail =
            Cell::new(has_async_writes(&destination).then(|| guest.writes_expected.subscribe()));
        let backends = Rc::clone(&guest.source);
        Ok(ConnectionPermit {
            instance: caller,
            destination,
            source: backends,
            alive: here,
            writes_expected: tail,
            waiting_guard: waiting,
            _open_guard: count(open),
        })
    }
}

fn has_async_writes(to: &EgressDestination) -> bool {
    matches!(to.egress.writes, WriteMode::Async { .. })
}

impl InstanceEntry {
    fn find_destination(&self, to: SocketAddr) -> Option<Rc<EgressDestination>> {
        let declared = self
            .instance
            .destinations
            .iter()
            .find(|one| one.visible_addr() == to);
        declared.or_else(|| self.learned.get(&to)).cloned()
    }

    /// The declared name that an address stands for.
    fn declared_name_at(&self, at: Ipv4Addr) -> Option<String> {
        self.instance
            .destinations
            .iter()
            .find_map(|one| match &one.egress.host {
                EgressHost::Name(name) if one.visible_ip == at => Some(name.clone()),
                _ => None,
            })
    }
}

impl CountGuard {
    fn add_one(tally: &Rc<ConnectionCounts>, counter: fn(&ConnectionCounts) -> &Cell<u32>) -> Self {
        counter(tally).set(counter(tally).get() + 1);
        Self {
            counts: Rc::clone(tally),
            counter,
            is_counted: Cell::new(true),
        }
    }

    pub(crate) fn release_count(&self) {
        if self.is_counted.replace(false) {
            let counter = (self.counter)(&self.counts);
            counter.set(counter.get() - 1);
        }
    }
}

impl Drop for CountGuard {
    fn drop(&mut self) {
        self.release_count();
    }
}
