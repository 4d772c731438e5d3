//! Selects the path of a plain call along every deployed edge, and the reason why no shorter one is
//! available. Pure: callers make the same selection, here it uses the facts of the node.

use std::collections::{BTreeMap, BTreeSet};

use nearpath_domain::node_side::{DomainMembership, EndpointId};
use nearpath_domain::topology::EndpointOwner;
use nearpath_path::{self as path, CallFacts, CallNeeds, EdgeFacts, TransportFacts};
use nearpath_types::chain_status::{GATEWAY_NAME, PathStatus};
use nearpath_types::{
    FunctionId, FunctionRoute, InstanceAddr, InstanceId, InstanceLocality, InstanceRoute,
    InstanceState, RoutingSnapshot,
};

/// Lists each pair of ready instances along an edge, including the gateway's own calls. An edge
/// without ready instances has one entry.
pub(crate) fn matrix(
    snapshot: &RoutingSnapshot,
    memberships: &BTreeMap<String, DomainMembership>,
    introduced: Introduced,
) -> Vec<PathStatus> {
    let channels = memberships
        .iter()
        .map(|(domain, membership)| (domain.as_str(), DomainChannels::of(membership)))
        .collect();
    let routes = snapshot
        .functions
        .values()
        .map(|route| (&route.id, &**route))
        .collect();
    let view = View {
        channels,
        routes,
        introduced,
    };
    let outside = snapshot
        .functions
        .values()
        .flat_map(|callee| view.gateway_calls(callee));
    let inside = snapshot.functions.values().flat_map(|caller| {
        let view = &view;
        caller
            .policy
            .calls
            .iter()
            .flat_map(move |callee| view.edge_calls(caller, callee))
    });
    outside.chain(inside).collect()
}

struct View<'a> {
    channels: BTreeMap<&'a str, DomainChannels>,
    routes: BTreeMap<&'a FunctionId, &'a FunctionRoute>,
    introduced: Introduced,
}

/// The instances that each instance calls straight over QUIC.
type Introduced = BTreeMap<InstanceId, BTreeSet<InstanceAddr>>;

/// The endpoints of a domain's shared memory, and its channels from caller to callee. `None` stands
/// for the gateway.
#[derive(Default)]
struct DomainChannels {
    endpoints: BTreeSet<Option<InstanceId>>,
    channels: BTreeSet<(Option<InstanceId>, InstanceId)>,
    /// Instances whose calls go to their watchdogs.
    watchdogs: BTreeSet<InstanceId>,
    /// Instances whose own code is an endpoint.
    codes: BTreeSet<InstanceId>,
}

impl DomainChannels {
    /// Collects complete channels. The gateway's is complete when each of its threads has one; an
    /// instance needs one thread.
    fn of(membership: &DomainMembership) -> Self {
        let instance = |endpoint| {
            membership
                .endpoints
                .get(endpoint)
                .map(EndpointOwner::instance)
        };
        let mut counts: BTreeMap<(Option<InstanceId>, InstanceId), BTreeSet<_>> = BTreeMap::new();
        for (caller, callee) in &membership.channels {
            if let (Some(from), Some(Some(to))) = (instance(caller), instance(callee)) {
                counts.entry((from, to)).or_default().insert(*caller);
            }
        }
        let gateway_threads = membership
            .endpoints
            .values()
            .filter(|who| **who == EndpointOwner::Gateway)
            .count();
        // The kernel spreads connections over the gateway's threads, so each of them must reach it.
        let is_complete = |from: &Option<InstanceId>, callers: usize| {
            from.is_some() || callers == gateway_threads
        };
        let complete = counts
            .iter()
            .filter(|((from, _), callers)| is_complete(from, callers.len()));
        Self {
            endpoints: membership
                .endpoints
                .values()
                .map(EndpointOwner::instance)
                .collect(),
            channels: complete.map(|(channel, _)| *channel).collect(),
            watchdogs: called_watchdogs(membership),
            codes: joined_codes(membership),
        }
    }
}

impl View<'_> {
    fn gateway_calls(&self, callee: &FunctionRoute) -> Vec<PathStatus> {
        let entry = PathStatus {
            chain: callee.policy.chain.clone(),
            caller: GATEWAY_NAME.to_owned(),
            callee: callee.id.to_string(),
            ..PathStatus::default()
        };
        let domain = callee.policy.domain(&callee.id);
        let pair = |to: &InstanceRoute| {
            status(&entry, None, to, &self.gateway_facts(to, domain.as_deref()))
        };
        or_missing(ready(callee).map(pair).collect(), &entry, callee)
    }

    fn edge_calls(&self, caller: &FunctionRoute, callee: &FunctionId) -> Vec<PathStatus> {
        let entry = PathStatus {
            chain: caller.policy.chain.clone(),
            caller: caller.id.to_string(),
            callee: callee.to_string(),
            ..PathStatus::default()
        };
        let Some(callee) = self.routes.get(callee) else {
            return vec![PathStatus {
                reason: Some(format!("{callee} is not deployed")),
                ..entry
            }];
        };
        let domain = callee.policy.domain(&callee.id);
        let same_domain = caller.policy.domain(&caller.id) == domain;
        let pairs = ready(caller).flat_map(|from| ready(callee).map(move |to| (from, to)));
        let pair = |(from, to): (&InstanceRoute, &InstanceRoute)| {
            let facts = match self.calls_past_gateway(from) {
                true => self.direct_facts((from, to), domain.as_deref(), same_domain),
                false => self.gateway_facts(to, domain.as_deref()),
            };
            status(&entry, Some(from), to, &facts)
        };
        let pairs = pairs.map(pair).collect();
        or_missing(
            pairs,
            &entry,
            if ready(caller).next().is_none() {
                caller
            } else {
                callee
            },
        )
    }

    /// Returns whether an instance looks for a path past the gateway: its watchdog, or its own code,
    /// which uses shared memory. The calls of all others go to the gateway.
    fn calls_past_gateway(&self, from: &InstanceRoute) -> bool {
        let mut domains = self.channels.values();
        // With an identity its watchdog takes its calls.
        from.quic.is_some() || domains.any(|domain| domain.codes.contains(&from.id))
    }

    fn is_introduced(&self, from: InstanceId, to: &InstanceRoute) -> bool {
        let callees = self.introduced.get(&from);
        callees.is_some_and(|callees| callees.contains(&to.addr))
    }

    fn gateway_facts(&self, to: &InstanceRoute, domain: Option<&str>) -> CallFacts {
        CallFacts {
            edge: self.edge(None, to, domain, true),
            transport: TransportFacts {
                wanted: to.transport,
                caller_has_certificate: true,
                callee_has_certificate: to.quic.is_some(),
                tls: true,
                own_port: to.server.is_some(),
                ..TransportFacts::PLAIN // each gateway finds out by itself what gets through
            },
            needs: CallNeeds::PLAIN,
        }
    }

    fn direct_facts(
        &self,
        (from, to): (&InstanceRoute, &InstanceRoute),
        domain: Option<&str>,
        same_domain: bool,
    ) -> CallFacts {
        CallFacts {
            edge: self.edge(Some(from), to, domain, same_domain),
            transport: match self.is_introduced(from.id, to) {
                true => TransportFacts::INTRODUCED,
                false => TransportFacts::PLAIN,
            },
            needs: CallNeeds::PLAIN,
        }
    }

    /// Returns the facts of an edge. The gateway (`from: None`) runs on this node.
    fn edge(
        &self,
        from: Option<&InstanceRoute>,
        to: &InstanceRoute,
        domain: Option<&str>,
        same_domain: bool,
    ) -> EdgeFacts {
        let is_here = |instance: &InstanceRoute| instance.locality == InstanceLocality::SameNode;
        let channels = domain.and_then(|domain| self.channels.get(domain));
        let caller = from.map(|from| from.id);
        EdgeFacts {
            same_node: from.is_none_or(is_here) && is_here(to),
            callee_in_domain: domain.is_some(),
            same_domain,
            caller_attached: channels.is_some_and(|domain| domain.endpoints.contains(&caller)),
            callee_attached: channels
                .is_some_and(|domain| domain.channels.contains(&(caller, to.id))),
            callee_is_watchdog: channels.is_some_and(|domain| domain.watchdogs.contains(&to.id)),
        }
    }
}

/// Returns the instances whose own code is an endpoint.
fn joined_codes(membership: &DomainMembership) -> BTreeSet<InstanceId> {
    let codes = membership.endpoints.iter();
    codes
        .filter(|(endpoint, _)| !membership.watchdogs.contains(endpoint))
        .filter_map(|(_, owner)| owner.instance())
        .collect()
}

/// Returns the instances whose calls go to their watchdogs alone. A watchdog whose instance has another
/// endpoint may still have channels, which drain.
fn called_watchdogs(membership: &DomainMembership) -> BTreeSet<InstanceId> {
    let callees = membership.channels.iter().map(|(_, callee)| callee);
    let instance = |callee: &EndpointId| membership.endpoints.get(callee)?.instance();
    let (mut watchdogs, mut others) = (BTreeSet::new(), BTreeSet::new());
    for callee in callees {
        let called = match membership.watchdogs.contains(callee) {
            true => &mut watchdogs,
            false => &mut others,
        };
        called.extend(instance(callee));
    }
    &watchdogs - &others
}

fn status(
    entry: &PathStatus,
    from: Option<&InstanceRoute>,
    to: &InstanceRoute,
    facts: &CallFacts,
) -> PathStatus {
    let choice = path::select_paths(facts).first_choice();
    PathStatus {
        caller_instance: from.map(|from| from.id.to_string()),
        callee_instance: Some(to.id.to_string()),
        path: Some(choice.path.name().to_owned()),
        obstacle: choice.obstacle.map(|obstacle| obstacle.name().to_owned()),
        reason: choice.obstacle.map(|obstacle| obstacle.to_string()),
        ..entry.clone()
    }
}

fn ready(function: &FunctionRoute) -> impl Iterator<Item = &InstanceRoute> {
    function
        .instances
        .iter()
        .filter(|instance| instance.state == InstanceState::Ready)
}

/// Returns one entry with the reason for an edge without ready instances.
fn or_missing(
    pairs: Vec<PathStatus>,
    entry: &PathStatus,
    missing: &FunctionRoute,
) -> Vec<PathStatus> {
    if !pairs.is_empty() {
        return pairs;
    }
    let how = if missing.replicas == 0 {
        "is scaled to zero"
    } else {
        "has no ready instance"
    };
    vec![PathStatus {
        reason: Some(format!("{} {how}", missing.id)),
        ..entry.clone()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::FunctionPolicy;
    use nearpath_types::policy::CallTransport;
    use std::sync::Arc;

    fn addr(id: u64) -> InstanceAddr {
        InstanceAddr(([10, 62, 0, id as u8], 8080).into())
    }

    fn function(
        name: &str,
        chain: Option<&str>,
        calls: &[&str],
        instances: &[u64],
    ) -> FunctionRoute {
        let calls = calls.iter().map(|name| name.parse().unwrap()).collect();
        let policy = FunctionPolicy {
            chain: chain.map(str::to_owned),
            calls,
            ..FunctionPolicy::default()
        };
        let ready = |id: &u64| InstanceRoute {
            id: InstanceId(*id),
            addr: addr(*id),
            locality: InstanceLocality::SameNode,
            state: InstanceState::Ready,
            quic: None,
            transport: CallTransport::Auto,
            server: None,
        };
        let instances: Vec<_> = instances.iter().map(ready).collect();
        let replicas = instances.len() as u32;
        FunctionRoute {
            address: None,
            id: name.parse().unwrap(),
            policy: Arc::new(policy),
            replicas,
            instances,
            runs_here: true,
            remotes: Vec::new(),
            start_failure: None,
        }
    }

    fn endpoint(number: u16) -> EndpointId {
        EndpointId::new(number).unwrap()
    }

    fn membership(
        endpoints: &[(u16, Option<(u64, &str)>)],
        channels: &[(u16, u16)],
    ) -> BTreeMap<String, DomainMembership> {
        let who = |who: &Option<(u64, &str)>| match who {
            None => EndpointOwner::Gateway,
            Some((id, name)) => EndpointOwner::Instance(InstanceId(*id), name.parse().unwrap()),
        };
        let endpoints = endpoints
            .iter()
            .map(|(number, one)| (endpoint(*number), who(one)))
            .collect();
        let channels = channels
            .iter()
            .map(|(caller, callee)| (endpoint(*caller), endpoint(*callee)))
            .collect();
        [(
            "shop.openfaas-fn".to_owned(),
            DomainMembership {
                endpoints,
                watchdogs: BTreeSet::new(),
                channels,
            },
        )]
        .into()
    }

    fn path_lines(paths: &[PathStatus]) -> Vec<(String, &str)> {
        let or = |text: &Option<String>| text.clone().unwrap_or("-".into());
        let short = |name: &str| name.replace(".openfaas-fn", "");
        let line = |p: &PathStatus| {
            format!(
                "{}/{} {}/{} {}",
                short(&p.caller),
                or(&p.caller_instance),
                short(&p.callee),
                or(&p.callee_instance),
                or(&p.path)
            )
        };
        paths
            .iter()
            .map(|path| (line(path), path.obstacle.as_deref().unwrap_or("")))
            .collect()
    }

    /// The order follows from the names alone.
    fn sorted<T: Ord>(mut lines: Vec<T>) -> Vec<T> {
        lines.sort();
        lines
    }

    #[test]
    fn every_pair_has_a_path_and_its_obstacle() {
        let functions = [
            function(
                "front",
                Some("shop"),
                &["back", "plain", "alone", "other", "nobody"],
                &[1],
            ),
            function("back", Some("shop"), &["back"], &[2, 3]),
            function("plain", Some("shop"), &["back"], &[4]),
            function("alone", None, &[], &[5]),
            function("other", Some("mail"), &[], &[6]),
        ];
        let snapshot = RoutingSnapshot {
            version: 1,
            nodes: Arc::default(),
            functions: functions.into_iter().collect(),
        };
        let endpoints = [
            (1, None),
            (2, None),
            (3, Some((1, "front"))),
            (4, Some((2, "back"))),
            (5, Some((3, "back"))),
        ];
        let channels = [(1, 3), (2, 3), (1, 4), (2, 4), (1, 5), (3, 4), (4, 5)];
        let direct = BTreeMap::from([(InstanceId(1), BTreeSet::from([addr(5)]))]);
        let paths = matrix(&snapshot, &membership(&endpoints, &channels), direct);
        let expected = [
            ("gateway/- front/i1 shm", ""),
            ("gateway/- back/i2 shm", ""),
            // One of its two threads does not reach it yet.
            ("gateway/- back/i3 http", "no_endpoint"),
            ("gateway/- plain/i4 http", "no_endpoint"),
            ("gateway/- alone/i5 http", "no_domain"),
            ("gateway/- other/i6 http", "caller_no_endpoint"),
            ("front/i1 back/i2 shm", ""),
            ("front/i1 back/i3 http", "no_endpoint"),
            ("front/i1 plain/i4 http", "no_endpoint"),
            ("front/i1 alone/i5 quic", "no_domain"),
            ("front/i1 other/i6 http", "other_domain"),
            ("front/- nobody/- -", ""),
            ("back/i2 back/i2 http", "no_endpoint"),
            ("back/i2 back/i3 shm", ""),
            ("back/i3 back/i2 http", "no_endpoint"),
            ("back/i3 back/i3 http", "no_endpoint"),
            // Its own code uses no memory: the gateway takes its calls.
            ("plain/i4 back/i2 shm", ""),
            ("plain/i4 back/i3 http", "no_endpoint"),
        ];
        assert_eq!(
            sorted(path_lines(&paths)),
            sorted(expected.map(|(line, why)| (line.to_owned(), why)).into())
        );
        assert!(
            paths
                .iter()
                .any(|path| path.reason.as_deref() == Some("nobody.openfaas-fn is not deployed"))
        );
    }

    #[test]
    fn a_watchdog_is_called_while_its_instance_has_no_other_endpoint() {
        let endpoints = [
            (1, None),
            (2, Some((1, "front"))),
            (3, Some((2, "back"))),
            (4, Some((2, "back"))),
            (5, Some((3, "back"))),
        ];
        let mut all = membership(&endpoints, &[(1, 2), (1, 3), (1, 4), (1, 5)]);
        let shop = all.get_mut("shop.openfaas-fn").unwrap();
        shop.watchdogs = [endpoint(2), endpoint(3)].into();
        // i2 has joined by itself, and its watchdog's channel drains; i3 has no watchdog here.
        assert_eq!(called_watchdogs(shop), BTreeSet::from([InstanceId(1)]));
        shop.channels.pop();
        shop.channels.pop();
        let both = BTreeSet::from([InstanceId(1), InstanceId(2)]);
        assert_eq!(called_watchdogs(shop), both);
    }

    /// An instance on another node: the snapshot says so, and nothing else is assumed.
    #[test]
    fn memory_does_not_reach_another_node() {
        let mut functions = [
            function("front", Some("shop"), &["back"], &[1]),
            function("back", Some("shop"), &["front"], &[2]),
        ];
        functions[1].instances[0].locality = InstanceLocality::OtherNode;
        let snapshot = RoutingSnapshot {
            version: 1,
            nodes: Arc::default(),
            functions: functions.into_iter().collect(),
        };
        let endpoints = [(1, None), (3, Some((1, "front"))), (4, Some((2, "back")))];
        let membership = membership(&endpoints, &[(1, 3), (1, 4), (3, 4), (4, 3)]);
        let expected = [
            ("gateway/- front/i1 shm", ""),
            ("gateway/- back/i2 tls", "no_identity"), // in clear nothing leaves the machine
            ("front/i1 back/i2 http", "other_node"),
            ("back/i2 front/i1 http", "other_node"),
        ];
        let paths = matrix(&snapshot, &membership, Introduced::new());
        assert_eq!(
            sorted(path_lines(&paths)),
            sorted(expected.map(|(line, why)| (line.to_owned(), why)).into())
        );
    }

    #[test]
    fn who_sleeps_has_no_path() {
        let functions = [
            function("front", None, &["back"], &[1]),
            function("back", None, &[], &[]),
        ];
        let paths = matrix(
            &RoutingSnapshot {
                version: 1,
                nodes: Arc::default(),
                functions: functions.into_iter().collect(),
            },
            &BTreeMap::new(),
            Introduced::new(),
        );
        assert_eq!(paths.len(), 3);
        let asleep = |path: &&PathStatus| {
            path.reason.as_deref() == Some("back.openfaas-fn is scaled to zero")
                && path.path.is_none()
        };
        assert_eq!(paths.iter().filter(asleep).count(), 2);
    }
}
