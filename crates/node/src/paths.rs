//! Which path a plain call takes along every edge of what is deployed, and why no nearer one: the decision that callers make
//! themselves, over the facts that the node has. Pure.

use std::collections::{BTreeMap, BTreeSet};

use nearpath_domain::hub::Roll;
use nearpath_domain::registrar::Who;
use nearpath_path::{self as path, Call, Carrier, Edge, Facts};
use nearpath_types::chain::{GATEWAY, PathStatus};
use nearpath_types::policy::Transport;
use nearpath_types::{FunctionId, FunctionRoute, Instance, InstanceAddr, InstanceId, InstanceState, Snapshot};

/// Nothing about the call itself stands in the way of any path.
const PLAIN: Call = Call { upgrade: false, grpc: false };

/// One entry for each pair of ready instances along an edge, the gateway's own calls included; one without instances where
/// none is ready.
pub(crate) fn matrix(snapshot: &Snapshot, rolls: &BTreeMap<String, Roll>, direct: Ways) -> Vec<PathStatus> {
    let reach = rolls.iter().map(|(domain, roll)| (domain.as_str(), Reach::of(roll))).collect();
    let known = snapshot.functions.iter().map(|route| (&route.id, route)).collect();
    let view = View { reach, known, direct };
    let outside = snapshot.functions.iter().flat_map(|callee| view.gateways(callee));
    let inside = snapshot.functions.iter().flat_map(|caller| {
        let view = &view;
        caller.policy.calls.iter().flat_map(move |callee| view.along(caller, callee))
    });
    outside.chain(inside).collect()
}

struct View<'a> {
    reach: BTreeMap<&'a str, Reach>,
    known: BTreeMap<&'a FunctionId, &'a FunctionRoute>,
    direct: Ways,
}

/// Which instances call which straight over QUIC.
type Ways = BTreeMap<InstanceId, BTreeSet<InstanceAddr>>;

/// Who of a domain reaches whom. `None` stands for the gateway.
#[derive(Default)]
struct Reach {
    parties: BTreeSet<Option<InstanceId>>,
    lines: BTreeSet<(Option<InstanceId>, InstanceId)>,
}

impl Reach {
    /// The gateway reaches an instance when each of its threads does; an instance reaches it when any of its parties does.
    fn of(roll: &Roll) -> Self {
        let instance = |party| roll.parties.get(party).map(Who::instance);
        let mut counts: BTreeMap<(Option<InstanceId>, InstanceId), BTreeSet<_>> = BTreeMap::new();
        for (caller, callee) in &roll.channels {
            if let (Some(from), Some(Some(to))) = (instance(caller), instance(callee)) {
                counts.entry((from, to)).or_default().insert(*caller);
            }
        }
        let lanes = roll.parties.values().filter(|who| **who == Who::Gateway).count();
        let whole = |(from, callers): (&Option<InstanceId>, usize)| from.is_some() || callers == lanes;
        let lines = counts.iter().filter(|((from, _), callers)| whole((from, callers.len())));
        Self {
            parties: roll.parties.values().map(Who::instance).collect(),
            lines: lines.map(|(line, _)| *line).collect(),
        }
    }
}

impl View<'_> {
    fn gateways(&self, callee: &FunctionRoute) -> Vec<PathStatus> {
        let entry = PathStatus {
            chain: callee.policy.chain.clone(),
            caller: GATEWAY.to_owned(),
            callee: callee.id.to_string(),
            ..PathStatus::default()
        };
        let domain = callee.policy.domain(&callee.id);
        let pair = |to: &Instance| {
            let carrier = Carrier {
                transport: to.transport,
                caller_named: true,
                callee_named: to.quic.is_some(),
                udp_blocked: false, // each gateway finds out by itself
                tls: true,
            };
            self.pair(&entry, None, to.id, domain.as_deref(), (true, carrier))
        };
        or_missing(ready(callee).map(pair).collect(), &entry, callee)
    }

    fn along(&self, caller: &FunctionRoute, callee: &FunctionId) -> Vec<PathStatus> {
        let entry = PathStatus {
            chain: caller.policy.chain.clone(),
            caller: caller.id.to_string(),
            callee: callee.to_string(),
            ..PathStatus::default()
        };
        let Some(callee) = self.known.get(callee) else {
            return vec![PathStatus { why: Some(format!("{callee} is not deployed")), ..entry }];
        };
        let domain = callee.policy.domain(&callee.id);
        let same = caller.policy.domain(&caller.id) == domain;
        let pairs = ready(caller).flat_map(|from| ready(callee).map(move |to| (from.id, to)));
        let pair = |(from, to): (InstanceId, &Instance)| {
            let carrier = self.carrier(from, to);
            self.pair(&entry, Some(from), to.id, domain.as_deref(), (same, carrier))
        };
        let pairs = pairs.map(pair).collect();
        or_missing(pairs, &entry, if ready(caller).next().is_none() { caller } else { callee })
    }

    /// From function to function, past the gateway or by it.
    fn carrier(&self, from: InstanceId, to: &Instance) -> Carrier {
        match self.direct.get(&from).is_some_and(|ways| ways.contains(&to.addr)) {
            true => Carrier { transport: Transport::Quic, caller_named: true, callee_named: true, ..Carrier::PLAIN },
            false => Carrier::PLAIN,
        }
    }

    fn pair(
        &self,
        entry: &PathStatus,
        from: Option<InstanceId>,
        to: InstanceId,
        domain: Option<&str>,
        (same_domain, carrier): (bool, Carrier),
    ) -> PathStatus {
        let reach = domain.and_then(|domain| self.reach.get(domain));
        let edge = Edge {
            same_node: true,
            callee_in_domain: domain.is_some(),
            same_domain,
            caller_is_party: reach.is_some_and(|reach| reach.parties.contains(&from)),
            callee_is_party: reach.is_some_and(|reach| reach.lines.contains(&(from, to))),
        };
        let choice = path::choose(&Facts { edge, carrier, call: PLAIN });
        PathStatus {
            caller_instance: from.map(|id| id.to_string()),
            callee_instance: Some(to.to_string()),
            path: Some(choice.path.name().to_owned()),
            not_nearer: choice.obstacle.map(|obstacle| obstacle.name().to_owned()),
            why: choice.obstacle.map(|obstacle| obstacle.to_string()),
            ..entry.clone()
        }
    }
}

fn ready(function: &FunctionRoute) -> impl Iterator<Item = &Instance> {
    function.instances.iter().filter(|instance| instance.state == InstanceState::Ready)
}

/// An edge that nobody can take now is told too.
fn or_missing(pairs: Vec<PathStatus>, entry: &PathStatus, missing: &FunctionRoute) -> Vec<PathStatus> {
    if !pairs.is_empty() {
        return pairs;
    }
    let how = if missing.replicas == 0 { "is asleep" } else { "has no ready instance" };
    vec![PathStatus { why: Some(format!("{} {how}", missing.id)), ..entry.clone() }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_domain::hub::Party;
    use nearpath_types::Policy;
    use std::sync::Arc;

    fn addr(id: u64) -> InstanceAddr {
        InstanceAddr(([10, 62, 0, id as u8], 8080).into())
    }

    fn function(name: &str, chain: Option<&str>, calls: &[&str], instances: &[u64]) -> FunctionRoute {
        let calls = calls.iter().map(|name| name.parse().unwrap()).collect();
        let policy = Policy { chain: chain.map(str::to_owned), calls, ..Policy::default() };
        let ready = |id: &u64| Instance {
            id: InstanceId(*id),
            addr: addr(*id),
            state: InstanceState::Ready,
            quic: None,
            transport: Transport::Auto,
        };
        let instances: Vec<_> = instances.iter().map(ready).collect();
        let replicas = instances.len() as u32;
        FunctionRoute { id: name.parse().unwrap(), policy: Arc::new(policy), replicas, instances, trouble: None }
    }

    fn party(number: u16) -> Party {
        Party::new(number).unwrap()
    }

    fn roll(parties: &[(u16, Option<(u64, &str)>)], channels: &[(u16, u16)]) -> BTreeMap<String, Roll> {
        let who = |who: &Option<(u64, &str)>| match who {
            None => Who::Gateway,
            Some((id, name)) => Who::Instance(InstanceId(*id), name.parse().unwrap()),
        };
        let parties = parties.iter().map(|(number, one)| (party(*number), who(one))).collect();
        let channels = channels.iter().map(|(caller, callee)| (party(*caller), party(*callee))).collect();
        [("shop.openfaas-fn".to_owned(), Roll { parties, channels })].into()
    }

    fn told(paths: &[PathStatus]) -> Vec<(String, &str)> {
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
        paths.iter().map(|path| (line(path), path.not_nearer.as_deref().unwrap_or(""))).collect()
    }

    #[test]
    fn every_pair_is_told_with_what_stands_in_its_way() {
        let functions = vec![
            function("front", Some("shop"), &["back", "plain", "alone", "other", "nobody"], &[1]),
            function("back", Some("shop"), &["back"], &[2, 3]),
            function("plain", Some("shop"), &["back"], &[4]),
            function("alone", None, &[], &[5]),
            function("other", Some("mail"), &[], &[6]),
        ];
        let snapshot = Snapshot { version: 1, functions };
        let parties = [(1, None), (2, None), (3, Some((1, "front"))), (4, Some((2, "back"))), (5, Some((3, "back")))];
        let channels = [(1, 3), (2, 3), (1, 4), (2, 4), (1, 5), (3, 4), (4, 5)];
        let direct = BTreeMap::from([(InstanceId(1), BTreeSet::from([addr(5)]))]);
        let paths = matrix(&snapshot, &roll(&parties, &channels), direct);
        let expected = [
            ("gateway/- front/i1 shm", ""),
            ("gateway/- back/i2 shm", ""),
            ("gateway/- back/i3 http", "no_party"), // one of its two threads does not reach it yet
            ("gateway/- plain/i4 http", "no_party"),
            ("gateway/- alone/i5 http", "no_domain"),
            ("gateway/- other/i6 http", "caller_no_party"),
            ("front/i1 back/i2 shm", ""),
            ("front/i1 back/i3 http", "no_party"),
            ("front/i1 plain/i4 http", "no_party"),
            ("front/i1 alone/i5 quic", "no_domain"),
            ("front/i1 other/i6 http", "other_domain"),
            ("front/- nobody/- -", ""),
            ("back/i2 back/i2 http", "no_party"),
            ("back/i2 back/i3 shm", ""),
            ("back/i3 back/i2 http", "no_party"),
            ("back/i3 back/i3 http", "no_party"),
            ("plain/i4 back/i2 http", "caller_no_party"),
            ("plain/i4 back/i3 http", "caller_no_party"),
        ];
        assert_eq!(told(&paths), expected.map(|(line, why)| (line.to_owned(), why)));
        assert!(paths.iter().any(|path| path.why.as_deref() == Some("nobody.openfaas-fn is not deployed")));
    }

    #[test]
    fn who_sleeps_has_no_path() {
        let functions = vec![function("front", None, &["back"], &[1]), function("back", None, &[], &[])];
        let paths = matrix(&Snapshot { version: 1, functions }, &BTreeMap::new(), Ways::new());
        assert_eq!(paths.len(), 3);
        let asleep =
            |path: &&PathStatus| path.why.as_deref() == Some("back.openfaas-fn is asleep") && path.path.is_none();
        assert_eq!(paths.iter().filter(asleep).count(), 2);
    }
}
