//! Choice of another node for a call: the less loaded one of two random ones, by the nodes' own reports.
//! A pure function of these.

use std::sync::Arc;

use nearpath_types::FunctionLoad;
use nearpath_wire::hop::balance::draw_pair;

use crate::function::FunctionEndpoint;

/// Chooses among nodes that are not in `tried`. `random` is any number. If no node has a ready
/// instance, the first one is chosen, so that all gateways wake the same node.
pub(super) fn choose_node<'a>(
    nodes: &'a [Arc<FunctionEndpoint>],
    tried: &[u64],
    random: u64,
) -> Option<&'a Arc<FunctionEndpoint>> {
    let untried = |one: &&Arc<FunctionEndpoint>| !tried.contains(&one.target.serial);
    let ready: Vec<_> = nodes
        .iter()
        .filter(untried)
        .filter(|one| one.load().ready > 0)
        .collect();
    let first = || nodes.iter().find(untried);
    less_loaded_of_two(&ready, random).or_else(first)
}

/// Chooses a node on which a call need not wait, by the node's last report. `max_inflight` is the limit
/// of one instance.
pub(super) fn choose_free_node(
    nodes: &[Arc<FunctionEndpoint>],
    max_inflight: Option<u32>,
    random: u64,
) -> Option<&Arc<FunctionEndpoint>> {
    let free: Vec<_> = nodes
        .iter()
        .filter(|one| has_free_place(one.load(), max_inflight))
        .collect();
    less_loaded_of_two(&free, random)
}

fn has_free_place(load: FunctionLoad, max_inflight: Option<u32>) -> bool {
    let places = max_inflight.map(|each| each.saturating_mul(load.ready));
    load.ready > 0 && places.is_none_or(|places| load.requests < places)
}

fn less_loaded_of_two<'a>(
    nodes: &[&'a Arc<FunctionEndpoint>],
    random: u64,
) -> Option<&'a Arc<FunctionEndpoint>> {
    let (a, b) = draw_pair(nodes.len(), random)?;
    let (a, b) = (nodes[a], nodes[b]);
    Some(if is_less_loaded(b.load(), a.load()) {
        b
    } else {
        a
    })
}

/// Compares requests per instance, without a division.
fn is_less_loaded(a: FunctionLoad, b: FunctionLoad) -> bool {
    let weight = |one: FunctionLoad, other: FunctionLoad| {
        u64::from(one.requests) * u64::from(other.ready.max(1))
    };
    weight(a, b) < weight(b, a)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::function::DialTarget;
    use nearpath_types::PeerNode;
    use proptest::prelude::*;

    fn nodes(loads: &[(u32, u32)]) -> Vec<Arc<FunctionEndpoint>> {
        let endpoint = |(number, (ready, requests)): (usize, &(u32, u32))| {
            let (name, addr) = (format!("n{number}"), ([192, 0, 2, number as u8], 1).into());
            let name: nearpath_types::NodeName = name.parse().unwrap();
            let target = DialTarget::for_node(&PeerNode {
                name: name.clone(),
                addr,
                incarnation: 1,
            });
            let endpoint = FunctionEndpoint::for_node(name, target.into());
            endpoint.set_load(FunctionLoad {
                ready: *ready,
                requests: *requests,
            });
            Arc::new(endpoint)
        };
        loads.iter().enumerate().map(endpoint).collect()
    }

    fn position(
        all: &[Arc<FunctionEndpoint>],
        chosen: Option<&Arc<FunctionEndpoint>>,
    ) -> Option<usize> {
        all.iter()
            .position(|one| chosen.is_some_and(|chosen| Arc::ptr_eq(one, chosen)))
    }

    #[test]
    fn without_a_ready_instance_all_gateways_wake_the_same_node() {
        let all = nodes(&[(0, 0), (0, 9), (0, 0)]);
        let chosen = |tried: &[u64], random| position(&all, choose_node(&all, tried, random));
        assert!((0..64).all(|random| chosen(&[], random << 58) == Some(0)));
        assert_eq!(chosen(&[all[0].target.serial], 7), Some(1));
        let tried: Vec<_> = all.iter().map(|one| one.target.serial).collect();
        assert_eq!(chosen(&tried, 7), None);
    }

    proptest! {
        #[test]
        fn the_busiest_of_the_ready_nodes_is_never_chosen(
            loads in prop::collection::vec((0u32..4, 0u32..9), 1..6),
            random: u64,
        ) {
            let all = nodes(&loads);
            let weight = |at: usize| f64::from(loads[at].1) / f64::from(loads[at].0.max(1));
            let ready: Vec<_> = (0..loads.len()).filter(|at| loads[*at].0 > 0).collect();
            let chosen = position(&all, choose_node(&all, &[], random)).unwrap();
            if !ready.is_empty() {
                prop_assert!(ready.contains(&chosen));
                let is_busiest = ready.iter().all(|at| *at == chosen || weight(*at) < weight(chosen));
                prop_assert!(ready.len() == 1 || !is_busiest);
            }
        }

        #[test]
        fn a_free_node_has_fewer_requests_than_places(
            loads in prop::collection::vec((0u32..4, 0u32..9), 0..6),
            max_inflight in prop::option::of(1u32..4),
            random: u64,
        ) {
            let all = nodes(&loads);
            let is_free = |(ready, requests): &(u32, u32)| {
                *ready > 0 && max_inflight.is_none_or(|each| *requests < each * ready)
            };
            match position(&all, choose_free_node(&all, max_inflight, random)) {
                Some(at) => prop_assert!(is_free(&loads[at])),
                None => prop_assert!(!loads.iter().any(is_free)),
            }
        }
    }
}
