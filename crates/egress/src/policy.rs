//! Egress policy: which instance may connect where, and how often. Pure except for counters.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::time::Instant;

use nearpath_types::egress::{EgressHost, WriteMode};
use nearpath_types::{Eip, FunctionId, InstanceId};
use tokio::sync::watch;

use crate::EgressInstance;
use crate::admission::AdmissionRequest;
use crate::names::wildcard::{AssignedAddress, WildcardNames, is_subdomain};
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::pool::ConnectionSource;
use nearpath_dbproxy::ClientInstance;

/// Maximum open connections of all instances of a function.
const MAX_OPEN_CONNECTIONS: u32 = 4_096;
/// Maximum connections of a function that wait for their destination.
const MAX_WAITING_CONNECTIONS: u32 = 1_024;

/// Admitted instances by address.
#[derive(Default)]
pub(crate) struct EgressPolicy {
    by_address: HashMap<Ipv4Addr, InstanceEntry>,
    counts_by_function: BTreeMap<FunctionId, Rc<ConnectionCounts>>,
}

/// An admitted instance.
struct InstanceEntry {
    instance: Rc<EgressInstance>,
    counts: Rc<ConnectionCounts>,
    source: Rc<dyn ConnectionSource>,
    /// Names below a wildcard that it has resolved.
    wildcard_names: WildcardNames,
    /// Destinations for those of them that it has connected to, by address.
    learned: HashMap<SocketAddr, Rc<EgressDestination>>,
    /// Never sends; dropped with the instance.
    alive: watch::Sender<()>,
    /// Never sends; dropped when no more bytes of the instance can arrive. Async writes hold the
    /// other end while they read.
    writes_expected: watch::Sender<()>,
}

/// Connections of all instances of a function.
#[derive(Debug, Default)]
struct ConnectionCounts {
    open: Cell<u32>,
    waiting: Cell<u32>,
}

/// Remains of an instance that has ended.
#[derive(Debug)]
pub(crate) struct ReleasedInstance {
    /// Destinations that were retained for it.
    pub(crate) destinations: Vec<Rc<EgressDestination>>,
    /// Addresses assigned to names below a wildcard.
    pub(crate) wildcard_addresses: Vec<Ipv4Addr>,
    /// Closed once all bytes of the instance are read. Dropping it ends those reads.
    pub(crate) writes_expected: watch::Sender<()>,
}

/// Permit for one connection.
pub(crate) struct ConnectionPermit {
    pub(crate) instance: Rc<EgressInstance>,
    pub(crate) destination: Rc<EgressDestination>,
    /// Source of connections to the destination.
    pub(crate) source: Rc<dyn ConnectionSource>,
    /// Fails when the instance has ended.
    pub(crate) alive: watch::Receiver<()>,
    /// Fails when no more bytes of the instance can arrive; only set where the connection outlives
    /// the instance. While it is held, for a bounded time, the instance keeps its address and
    /// routes.
    pub(crate) writes_expected: Cell<Option<watch::Receiver<()>>>,
    pub(crate) waiting_guard: CountGuard,
    _open_guard: CountGuard,
}

impl ConnectionPermit {
    /// Returns true if the connection outlives its instance until its writes are delivered.
    pub(crate) fn has_async_writes(&self) -> bool {
        has_async_writes(&self.destination)
    }
}

/// Counts one connection until it is released or dropped.
pub(crate) struct CountGuard {
    counts: Rc<ConnectionCounts>,
    counter: fn(&ConnectionCounts) -> &Cell<u32>,
    is_counted: Cell<bool>,
}

/// Reason why a connection is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EgressRefusal {
    /// No instance has the source address.
    #[error("connection from an unknown instance")]
    UnknownInstance,
    /// The instance did not declare the destination.
    #[error("connection to {1} reset: {function} does not declare it; add it to its `egress`", function = .0.caller.function)]
    Undeclared(Rc<EgressInstance>, String),
    /// The function has too many connections.
    #[error("connection to {1} reset: {function} has {MAX_OPEN_CONNECTIONS} open or {MAX_WAITING_CONNECTIONS} waiting connections", function = .0.caller.function)]
    TooManyConnections(Rc<EgressInstance>, String),
}

impl EgressRefusal {
    pub(crate) fn instance(&self) -> Option<&EgressInstance> {
        match self {
            Self::UnknownInstance => None,
            Self::Undeclared(instance, _) | Self::TooManyConnections(instance, _) => Some(instance),
        }
    }
}

impl EgressPolicy {
    /// Admits an instance. A previous one at its address has ended.
    pub(crate) fn admit_instance(
        &mut self,
        request: AdmissionRequest,
        to: Vec<EgressDestination>,
        source: Rc<dyn ConnectionSource>,
    ) -> Rc<EgressInstance> {
        let AdmissionRequest {
            instance,
            function,
            eip,
            requires_tls,
            ..
        } = request;
        // Connections may outlive their instances, so the references to the counts decide.
        self.counts_by_function
            .retain(|_, counts| Rc::strong_count(counts) > 1);
        let counts = Rc::clone(self.counts_by_function.entry(function.clone()).or_default());
        let destinations = to.into_iter().map(Rc::new).collect();
        let admitted = Rc::new(EgressInstance {
            caller: Rc::new(ClientInstance {
                instance,
                function,
                requires_tls,
            }),
            eip,
            destinations,
        });
        let (wildcard_names, learned, [alive, writes_expected]) = (
            WildcardNames::default(),
            HashMap::new(),
            [(); 2].map(watch::Sender::new),
        );
        let entry = InstanceEntry {
            instance: Rc::clone(&admitted),
            counts,
            source,
            wildcard_names,
            learned,
            alive,
            writes_expected,
        };
        self.by_address.insert(eip.0, entry);
        admitted
    }

    /// Removes an instance and ends its connections.
    pub(crate) fn remove_instance(
        &mut self,
        instance: InstanceId,
        eip: Eip,
    ) -> Option<ReleasedInstance> {
        // A late removal must not end the next instance at the same address.
        let same = self
            .by_address
            .get(&eip.0)
            .is_some_and(|entry| entry.instance.caller.instance == instance);
        let entry = same.then(|| self.by_address.remove(&eip.0)).flatten()?;
        let known = entry
            .instance
            .destinations
            .iter()
            .filter(|to| !to.is_wildcard())
            .cloned();
        let destinations = known.chain(entry.learned.into_values()).collect();
        Some(ReleasedInstance {
            destinations,
            wildcard_addresses: entry.wildcard_names.addresses().collect(),
            writes_expected: entry.writes_expected,
        })
    }

    /// Returns the instance at an address, and a receiver that fails when it ends.
    pub(crate) fn find_alive(&self, eip: Eip) -> Option<(Rc<EgressInstance>, watch::Receiver<()>)> {
        self.by_address
            .get(&eip.0)
            .map(|entry| (Rc::clone(&entry.instance), entry.alive.subscribe()))
    }

    /// Assigns an address to a name below a wildcard. Also returns the destinations that the
    /// address had under its previous name. `None` if no address is free or the instance has ended.
    pub(crate) fn assign_wildcard_address(
        &mut self,
        of: &EgressInstance,
        now: Instant,
        name: &str,
    ) -> Option<(AssignedAddress, Vec<Rc<EgressDestination>>)> {
        // The instance may have ended while its name was resolved.
        let entry = self
            .by_address
            .get_mut(&of.eip.0)
            .filter(|entry| entry.instance.caller.instance == of.caller.instance)?;
        let assigned = entry.wildcard_names.assign_address(now, name)?;
        // Connections by the old name must not reach the new one.
        let stale = entry
            .learned
            .extract_if(|address, _| assigned.was_reassigned && address.ip() == assigned.address);
        let stale = stale.map(|(_, to)| to).collect();
        Some((assigned, stale))
    }

    /// Returns true if a name below a wildcard has an address in an instance.
    pub(crate) fn has_wildcard_name(&self, of: &EgressInstance, name: &str) -> bool {
        self.by_address
            .get(&of.eip.0)
            .is_some_and(|entry| entry.wildcard_names.has_name(name))
    }

    /// Returns the destination of a first connection to a name below a wildcard. The address is the
    /// assigned one or a declared name's.
    pub(crate) fn learn_destination(
        &mut self,
        from: Ipv4Addr,
        to: SocketAddr,
        now: Instant,
    ) -> Option<Rc<EgressDestination>> {
        let entry = self.by_address.get_mut(&from)?;
        let IpAddr::V4(address) = to.ip() else {
            return None;
        };
        // Done even for a known destination, because it marks the name as used.
        let name = entry
            .wildcard_names
            .name_of(now, address)
            .map(str::to_owned);
        if entry.find_destination(to).is_some() {
            return None;
        }
        let name = name.or_else(|| entry.declared_name_at(address))?;
        let covers = |one: &&Rc<EgressDestination>| match &one.egress.host {
            EgressHost::Below(base) => one.egress.port == to.port() && is_subdomain(&name, base),
            _ => false,
        };
        let covering = entry.instance.destinations.iter().filter(covers);
        // The longest wildcard is the most specific one.
        let nearest = covering.max_by_key(|one| one.egress.host.to_string().len())?;
        let learned = Rc::new(nearest.for_wildcard_name(&name, address));
        entry.learned.insert(to, Rc::clone(&learned));
        Some(learned)
    }

    /// Returns the instance at an address.
    pub(crate) fn instance_at(&self, eip: Eip) -> Option<Rc<EgressInstance>> {
        self.by_address
            .get(&eip.0)
            .map(|entry| Rc::clone(&entry.instance))
    }

    /// Returns any instance of a function, and its source of connections.
    pub(crate) fn any_instance_of(
        &self,
        function: &FunctionId,
    ) -> Option<(Rc<EgressInstance>, Rc<dyn ConnectionSource>)> {
        let found = self
            .by_address
            .values()
            .find(|entry| entry.instance.caller.function == *function)?;
        Some((Rc::clone(&found.instance), Rc::clone(&found.source)))
    }

    /// Permits or refuses a connection by its source and destination address.
    pub(crate) fn check_connection(
        &self,
        from: Ipv4Addr,
        to: impl Into<SocketAddr>,
    ) -> Result<ConnectionPermit, EgressRefusal> {
        let to = to.into();
        let entry = self
            .by_address
            .get(&from)
            .ok_or(EgressRefusal::UnknownInstance)?;
        let instance = Rc::clone(&entry.instance);
        let Some(destination) = entry.find_destination(to) else {
            // Reported by the name that the tenant declared, not by the assigned address.
            let has_address = |one: &&Rc<EgressDestination>| one.visible_ip == to.ip();
            let name = instance
                .destinations
                .iter()
                .chain(entry.learned.values())
                .find(has_address)
                .map(|one| &one.egress.host);
            let called =
                name.map_or_else(|| to.to_string(), |name| format!("{name}:{}", to.port()));
            return Err(EgressRefusal::Undeclared(instance, called));
        };
        if entry.counts.open.get() >= MAX_OPEN_CONNECTIONS
            || entry.counts.waiting.get() >= MAX_WAITING_CONNECTIONS
        {
            return Err(EgressRefusal::TooManyConnections(
                instance,
                destination.key.host_port.clone(),
            ));
        }
        // Every connection waits at first, until its adapter or its destination takes it.
        let [open, waiting] = [
            (|counts| &counts.open) as fn(&ConnectionCounts) -> &Cell<u32>,
            |counts| &counts.waiting,
        ];
        let count = |of| CountGuard::add_one(&entry.counts, of);
        let (alive, waiting) = (entry.alive.subscribe(), count(waiting));
        // Only async writes hold the address of an ended instance.
        let writes_expected =
            Cell::new(has_async_writes(&destination).then(|| entry.writes_expected.subscribe()));
        let source = Rc::clone(&entry.source);
        Ok(ConnectionPermit {
            instance,
            destination,
            source,
            alive,
            writes_expected,
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
        // Declared destinations win over names below a wildcard.
        let declared = self
            .instance
            .destinations
            .iter()
            .find(|one| one.visible_addr() == to);
        declared.or_else(|| self.learned.get(&to)).cloned()
    }

    /// Returns the declared name at an address.
    fn declared_name_at(&self, address: Ipv4Addr) -> Option<String> {
        self.instance
            .destinations
            .iter()
            .find_map(|one| match &one.egress.host {
                EgressHost::Name(name) if one.visible_ip == address => Some(name.clone()),
                _ => None,
            })
    }
}

impl CountGuard {
    fn add_one(
        counts: &Rc<ConnectionCounts>,
        counter: fn(&ConnectionCounts) -> &Cell<u32>,
    ) -> Self {
        counter(counts).set(counter(counts).get() + 1);
        Self {
            counts: Rc::clone(counts),
            counter,
            is_counted: Cell::new(true),
        }
    }

    pub(crate) fn release_count(&self) {
        // Released early or on drop, but never twice.
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
