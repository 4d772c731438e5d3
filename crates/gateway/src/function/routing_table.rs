//! Routing table: functions by name, and calling instances by address. Readers never block.
//!
//! A publication applies what differs from the last one. Versions of the index share the rest, so it
//! costs what changed, and readers still see one version as a whole.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use imbl::HashMap;
use nearpath_types::name::DEFAULT_NAMESPACE;
use nearpath_types::{
    FunctionChange, FunctionId, FunctionMap, FunctionRoute, InstanceId, PeerNode, RoutingSnapshot,
};
use tokio::sync::watch;

use super::endpoint::FunctionEndpoint;
use super::entry::FunctionEntry;
use super::node_targets::NodeTargets;

/// Routing state of the gateway.
#[derive(Debug)]
pub(crate) struct RoutingTable {
    index: ArcSwap<FunctionIndex>,
    /// Number of the last publication.
    changes: watch::Sender<u64>,
    /// The lock serializes publishers; readers of the index never take it.
    publication: Mutex<Publication>,
}

/// State of publishers.
#[derive(Debug, Default)]
struct Publication {
    /// Routes that the index reflects.
    applied: FunctionMap<FunctionRoute>,
    /// Nodes that the index reflects.
    nodes: Arc<[Arc<PeerNode>]>,
    /// Withdrawn instances with open requests.
    withdrawn: Vec<Arc<FunctionEndpoint>>,
}

#[derive(Debug, Clone, Default)]
struct FunctionIndex {
    by_id: FunctionMap<FunctionEntry>,
    by_name: HashMap<Box<str>, Arc<FunctionEntry>>,
    by_caller_addr: HashMap<IpAddr, Arc<FunctionEntry>>,
    /// By the IPv4 part of virtual addresses.
    by_virtual_address: HashMap<Ipv4Addr, Arc<FunctionEntry>>,
    /// Functions that declare topics.
    with_topics: FunctionMap<FunctionEntry>,
    /// Functions that subscribe to events and run only on other nodes.
    remote_subscribers: FunctionMap<FunctionEntry>,
    /// Other nodes that are reachable.
    nodes: NodeTargets,
}

impl Default for RoutingTable {
    fn default() -> Self {
        Self {
            index: ArcSwap::default(),
            changes: watch::Sender::new(0),
            publication: Mutex::default(),
        }
    }
}

impl RoutingTable {
    /// Finds a function by name; without a namespace, in the default namespace.
    pub(crate) fn find_by_name(&self, name: &str) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_name.get(name).cloned()
    }

    /// Returns the function with this id.
    pub(crate) fn get(&self, id: &FunctionId) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_id.get(id).cloned()
    }

    /// Finds the function whose instance has this address, in any state of the instance.
    pub(crate) fn find_caller(&self, addr: IpAddr) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_caller_addr.get(&addr).cloned()
    }

    /// Finds the function with this virtual address.
    pub(crate) fn find_by_address(&self, address: Ipv4Addr) -> Option<Arc<FunctionEntry>> {
        self.index.load().by_virtual_address.get(&address).cloned()
    }

    /// Returns all functions, in order.
    pub(crate) fn functions(&self) -> Vec<Arc<FunctionEntry>> {
        self.index.load().by_id.values().cloned().collect()
    }

    /// Returns the functions that declare topics, in order.
    pub(crate) fn functions_with_topics(&self) -> Vec<Arc<FunctionEntry>> {
        self.index.load().with_topics.values().cloned().collect()
    }

    /// Returns the functions that subscribe to events and run only on other nodes, in order.
    pub(crate) fn remote_subscribers(&self) -> Vec<Arc<FunctionEntry>> {
        let index = self.index.load();
        index.remote_subscribers.values().cloned().collect()
    }

    /// Returns the other nodes that are reachable.
    pub(crate) fn nodes(&self) -> NodeTargets {
        self.index.load().nodes.clone()
    }

    /// Subscribes to publications.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Applies a snapshot. After the return, no thread sends new requests to an instance that the
    /// snapshot does not call ready.
    pub(crate) fn publish(&self, snapshot: &RoutingSnapshot) {
        let mut publication = self.lock_publication();
        let before = std::mem::replace(&mut publication.applied, snapshot.functions.clone());
        let mut index = FunctionIndex::clone(&self.index.load());
        let nodes_before = index.nodes.clone();
        if publication.nodes != snapshot.nodes {
            publication.nodes = snapshot.nodes.clone();
            index.nodes = nodes_before.with_nodes(&snapshot.nodes);
        }
        let mut removed = Vec::new();
        for change in snapshot.functions.changes_since(&before) {
            match change.after {
                Some(route) => {
                    let function = index.entry_for(route);
                    let withdrawn = function.apply_snapshot(route, &index.nodes);
                    publication.withdrawn.extend(withdrawn);
                    index.replace(&change, function);
                }
                None => removed.extend(index.remove(&change)),
            }
        }
        let nodes = index.nodes.clone();
        // Stored before functions are removed, so that no new request finds one that is closed.
        self.index.store(Arc::new(index));
        nodes_before.mark_ended_after(&nodes);
        for function in removed {
            publication.withdrawn.extend(function.remove_function());
        }
        publication
            .withdrawn
            .retain(|endpoint| endpoint.has_requests());
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Waits until no request is open at an instance that was withdrawn.
    pub(crate) async fn wait_requests_ended(&self, id: InstanceId) {
        let is_meant = |one: &&Arc<FunctionEndpoint>| one.instance() == Some(id);
        // The last one: ids are used again.
        let last = self
            .lock_publication()
            .withdrawn
            .iter()
            .rfind(is_meant)
            .cloned();
        if let Some(endpoint) = last {
            endpoint.wait_requests_ended().await;
        }
    }

    fn lock_publication(&self) -> MutexGuard<'_, Publication> {
        self.publication
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

type RouteChange<'a> = FunctionChange<'a, FunctionRoute>;

impl FunctionIndex {
    /// Returns the entry of a function. It is kept, because gate and counters must outlive the
    /// snapshot.
    fn entry_for(&self, route: &FunctionRoute) -> Arc<FunctionEntry> {
        let known = self.by_id.get(&route.id).cloned();
        known.unwrap_or_else(|| FunctionEntry::new(route.id.clone(), route.policy.clone()).into())
    }

    fn replace(&mut self, change: &RouteChange<'_>, function: Arc<FunctionEntry>) {
        self.remove_addresses(change);
        // In any state: an instance may call others while it starts or drains.
        for addr in addresses_of(change.after) {
            self.by_caller_addr.insert(addr, function.clone());
        }
        if let Some(address) = virtual_address_of(change.after) {
            self.by_virtual_address.insert(address, function.clone());
        }
        let id = change.id.clone();
        let is_member =
            |of: fn(&FunctionRoute) -> bool| change.after.is_some_and(|route| of(route));
        let has_topics = is_member(|route| !route.policy.topics.is_empty());
        set_member(&mut self.with_topics, &function, has_topics);
        let subscribes = is_member(|route| !route.policy.subscribes.is_empty() && !route.runs_here);
        set_member(&mut self.remote_subscribers, &function, subscribes);
        if change.before.is_none() {
            for name in names_of(&function) {
                self.by_name.insert(name, function.clone());
            }
            self.by_id.insert(id, function);
        }
    }

    fn remove(&mut self, change: &RouteChange<'_>) -> Option<Arc<FunctionEntry>> {
        self.remove_addresses(change);
        self.with_topics.remove(change.id);
        self.remote_subscribers.remove(change.id);
        let function = self.by_id.remove(change.id)?;
        for name in names_of(&function) {
            self.by_name.remove(&name);
        }
        Some(function)
    }

    fn remove_addresses(&mut self, change: &RouteChange<'_>) {
        for addr in addresses_of(change.before) {
            // The address may belong to a new instance of another function already.
            let owner = self.by_caller_addr.get(&addr);
            if owner.is_some_and(|function| function.id == *change.id) {
                self.by_caller_addr.remove(&addr);
            }
        }
        if let Some(address) = virtual_address_of(change.before) {
            let owner = self.by_virtual_address.get(&address);
            if owner.is_some_and(|function| function.id == *change.id) {
                self.by_virtual_address.remove(&address);
            }
        }
    }
}

fn set_member(
    members: &mut FunctionMap<FunctionEntry>,
    function: &Arc<FunctionEntry>,
    is_member: bool,
) {
    match is_member {
        true => drop(members.insert(function.id.clone(), function.clone())),
        false => drop(members.remove(&function.id)),
    }
}

fn addresses_of(route: Option<&Arc<FunctionRoute>>) -> impl Iterator<Item = IpAddr> {
    let instances = route.into_iter().flat_map(|route| &route.instances);
    instances.map(|instance| instance.addr.ip())
}

fn virtual_address_of(route: Option<&Arc<FunctionRoute>>) -> Option<Ipv4Addr> {
    route?.address.map(|address| address.v4)
}

/// Both names as keys in the default namespace: a lookup then needs no parsing and no allocation.
fn names_of(function: &FunctionEntry) -> impl Iterator<Item = Box<str>> {
    let is_default = function.id.namespace.as_str() == DEFAULT_NAMESPACE;
    let short = is_default.then(|| function.id.name.as_str().into());
    short.into_iter().chain([function.name.clone()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::policy::CallTransport;
    use nearpath_types::{
        FunctionPolicy, InstanceAddr, InstanceLocality, InstanceRoute, InstanceState,
    };
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const NAMES: [&str; 4] = ["a", "b", "a.dev", "c.dev"];
    /// Numbers of a function's instances, and whether it declares topics; `None`: not deployed.
    type Deployed = Option<(Vec<u8>, bool)>;

    fn route(name: &str, (instances, has_topics): &(Vec<u8>, bool)) -> FunctionRoute {
        let policy = FunctionPolicy {
            topics: if *has_topics {
                vec!["news/#".into()]
            } else {
                Vec::new()
            },
            ..FunctionPolicy::default()
        };
        let instance = |number: &u8| InstanceRoute {
            id: InstanceId(u64::from(*number)),
            addr: InstanceAddr(([10, 62, 0, *number], 8080).into()),
            locality: InstanceLocality::SameNode,
            state: match number % 3 {
                0 => InstanceState::Starting,
                1 => InstanceState::Ready,
                _ => InstanceState::Draining,
            },
            quic: None,
            transport: CallTransport::Auto,
            server: None,
        };
        FunctionRoute {
            address: None,
            id: name.parse().unwrap(),
            policy: Arc::new(policy),
            replicas: instances.len() as u32,
            instances: instances.iter().map(instance).collect(),
            runs_here: true,
            remotes: Vec::new(),
            start_failure: None,
        }
    }

    /// Deals each address to one function at most, and deploys some without any.
    fn any_deployment() -> impl Strategy<Value = [Deployed; 4]> {
        let owners = prop::collection::vec(prop::option::of(0usize..4), 12);
        let kinds = prop::array::uniform4(prop::option::weighted(0.8, any::<bool>()));
        (owners, kinds).prop_map(|(owners, kinds)| {
            let instances = |function: usize| {
                let all = owners.iter().zip(1u8..);
                all.filter(|(owner, _)| **owner == Some(function))
                    .map(|(_, number)| number)
                    .collect()
            };
            std::array::from_fn(|function| Some((instances(function), kinds[function]?)))
        })
    }

    /// Versions that a node publishes one after another share what did not change.
    fn next_snapshot(last: &RoutingSnapshot, deployed: &[Deployed; 4]) -> RoutingSnapshot {
        let mut next = last.clone();
        next.version += 1;
        for (name, deployed) in NAMES.iter().zip(deployed) {
            let id: FunctionId = name.parse().unwrap();
            let route = deployed.as_ref().map(|deployed| route(name, deployed));
            match route {
                Some(route)
                    if next
                        .functions
                        .get(&id)
                        .is_some_and(|known| **known == route) => {}
                Some(route) => drop(next.functions.insert(id, route)),
                None => drop(next.functions.remove(&id)),
            }
        }
        next
    }

    type Lookups = BTreeMap<String, Option<String>>;

    /// Answers of a table to all lookups, and the ready instances that it names.
    fn lookups(table: &RoutingTable) -> (Lookups, Vec<String>, Vec<String>) {
        let name = |function: Option<Arc<FunctionEntry>>| {
            function.map(|one| {
                let ready: Vec<_> = one
                    .route()
                    .ready
                    .iter()
                    .map(|ready| ready.instance().unwrap().0)
                    .collect();
                format!("{} {ready:?} {:?}", one.id, one.route().policy.topics)
            })
        };
        let names = NAMES
            .iter()
            .flat_map(|name| [name.to_string(), format!("{name}.openfaas-fn")]);
        let by_name = names.map(|text| (text.clone(), name(table.find_by_name(&text))));
        let by_id = NAMES.iter().map(|text| {
            (
                format!("id {text}"),
                name(table.get(&text.parse().unwrap())),
            )
        });
        let addresses = (1..=12).map(|number| IpAddr::from([10, 62, 0, number]));
        let by_addr = addresses.map(|addr| (addr.to_string(), name(table.find_caller(addr))));
        let ids = |all: Vec<Arc<FunctionEntry>>| all.iter().map(|one| one.id.to_string()).collect();
        let all = by_name.chain(by_id).chain(by_addr).collect();
        (
            all,
            ids(table.functions()),
            ids(table.functions_with_topics()),
        )
    }

    proptest! {
        #[test]
        fn publications_lead_to_the_table_of_the_last_snapshot(
            steps in prop::collection::vec((any_deployment(), any::<bool>()), 1..12)
        ) {
            let (table, mut last) = (RoutingTable::default(), RoutingSnapshot::default());
            for (deployed, is_seen) in steps {
                last = next_snapshot(&last, &deployed);
                // The gateway may miss versions: it only sees the newest.
                if is_seen {
                    table.publish(&last);
                    let rebuilt = RoutingTable::default();
                    rebuilt.publish(&last);
                    prop_assert_eq!(lookups(&table), lookups(&rebuilt));
                }
            }
        }
    }

    #[test]
    fn a_lost_publication_is_noticed() {
        let deployed = [Some((vec![1], true)), None, None, None];
        let snapshot = next_snapshot(&RoutingSnapshot::default(), &deployed);
        let [table, rebuilt] = [RoutingTable::default(), RoutingTable::default()];
        rebuilt.publish(&snapshot);
        assert_ne!(lookups(&table), lookups(&rebuilt));
        table.publish(&snapshot);
        assert_eq!(lookups(&table), lookups(&rebuilt));
    }

    #[test]
    fn a_publication_leaves_other_functions_alone() {
        let first = [Some((vec![1], false)), Some((vec![4], false)), None, None];
        let table = RoutingTable::default();
        let snapshot = next_snapshot(&RoutingSnapshot::default(), &first);
        table.publish(&snapshot);
        let route_of = |name: &str| table.get(&name.parse().unwrap()).unwrap().route();
        let (a, b) = (route_of("a"), route_of("b"));
        let second = [
            Some((vec![1, 7], false)),
            Some((vec![4], false)),
            None,
            None,
        ];
        table.publish(&next_snapshot(&snapshot, &second));
        assert!(!Arc::ptr_eq(&a, &route_of("a")));
        assert!(Arc::ptr_eq(&b, &route_of("b")));
    }
}
