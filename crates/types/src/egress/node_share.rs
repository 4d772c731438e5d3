//! Share of a node in the limit of a destination that functions on several nodes reach. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::{FunctionId, FunctionPolicy, Namespace, NodeName};

use super::EgressSpec;

/// Returns a node's share of a limit. The shares of all nodes together do not exceed the limit, unless there
/// are more nodes than connections: each node may open one.
pub fn node_share(max: u32, nodes: u32) -> u32 {
    (max / nodes.max(1)).max(1)
}

/// Returns the name of a limit group: all connections of a namespace to one `HOST:PORT`, as declared.
pub fn limit_group(namespace: &str, host_port: &str) -> String {
    format!("{namespace} {host_port}")
}

impl EgressSpec {
    /// Returns the declaration with the limits of one of `nodes` nodes.
    #[must_use]
    pub fn for_one_of(&self, nodes: u32) -> Self {
        self.clone().with_max(node_share(self.max, nodes))
    }
}

/// Nodes on which functions reach each destination. Changes cost the functions of the destinations that they
/// concern.
#[derive(Debug, Default)]
pub struct EgressPlacements {
    /// All nodes; empty: one without others.
    nodes: Arc<[NodeName]>,
    /// Functions of each limit group, with the nodes that they name.
    groups: BTreeMap<String, BTreeMap<FunctionId, Vec<NodeName>>>,
    groups_of: BTreeMap<FunctionId, Vec<String>>,
    /// Numbers that [`Self::take_changes`] has returned; absent: 1.
    counts: BTreeMap<String, u32>,
    touched: BTreeSet<String>,
}

impl EgressPlacements {
    /// Replaces the list of all nodes.
    pub fn set_nodes(&mut self, nodes: &Arc<[NodeName]>) {
        if *nodes != self.nodes {
            self.nodes = nodes.clone();
            self.touched.extend(self.groups.keys().cloned());
        }
    }

    /// Replaces the policy of a function, which may run on other nodes; `None` removes it.
    pub fn set_function(&mut self, id: &FunctionId, policy: Option<&FunctionPolicy>) {
        for group in self.groups_of.remove(id).unwrap_or_default() {
            if let Some(functions) = self.groups.get_mut(&group) {
                functions.remove(id);
            }
            self.touched.insert(group);
        }
        let Some(policy) = policy.filter(|policy| !policy.egress.is_empty()) else {
            return;
        };
        let groups: Vec<_> = policy
            .egress
            .iter()
            .map(|egress| group_of(&id.namespace, egress))
            .collect();
        for group in &groups {
            let functions = self.groups.entry(group.clone()).or_default();
            functions.insert(id.clone(), policy.nodes.clone());
            self.touched.insert(group.clone());
        }
        self.groups_of.insert(id.clone(), groups);
    }

    /// Returns the limit groups whose number of nodes differs from the last one returned.
    pub fn take_changes(&mut self) -> BTreeMap<String, u32> {
        let mut changes = BTreeMap::new();
        for group in std::mem::take(&mut self.touched) {
            let count = self.node_count(&group);
            let before = match count {
                1 => self.counts.remove(&group),
                count => self.counts.insert(group.clone(), count),
            };
            if before.unwrap_or(1) != count {
                changes.insert(group, count);
            }
        }
        self.groups.retain(|_, functions| !functions.is_empty());
        changes
    }

    fn node_count(&self, group: &str) -> u32 {
        let functions = self.groups.get(group).into_iter().flatten();
        let mut reaching = BTreeSet::new();
        for (_, named) in functions {
            // Without names, a function runs on all nodes.
            let runs_on = |node: &&NodeName| named.is_empty() || named.contains(node);
            reaching.extend(self.nodes.iter().filter(runs_on));
        }
        u32::try_from(reaching.len()).unwrap_or(u32::MAX).max(1)
    }
}

fn group_of(namespace: &Namespace, egress: &EgressSpec) -> String {
    limit_group(namespace.as_str(), &egress.host_port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NODES: [&str; 4] = ["a", "b", "c", "d"];
    const DESTINATIONS: [&str; 3] = ["db:5432", "*.example.com:443", "cache:6379"];

    proptest! {
        #[test]
        fn shares_use_the_limit_and_never_exceed_it_with_enough_connections(
            max in 1u32..10_000, nodes in 1u32..200,
        ) {
            let sum = node_share(max, nodes) * nodes;
            if nodes <= max {
                prop_assert!(sum <= max && sum + nodes > max);
            } else {
                prop_assert_eq!(sum, nodes, "each may open one");
            }
        }

        /// However changes came, the numbers are those of the last state.
        #[test]
        fn changes_lead_to_the_counts_of_the_last_state(steps in prop::collection::vec(any_step(), 0..40)) {
            let (mut placements, mut counts) = (EgressPlacements::default(), BTreeMap::new());
            let mut functions = BTreeMap::new();
            let mut nodes = names(0);
            for step in steps {
                match step {
                    Step::Nodes(mask) => nodes = names(mask),
                    Step::Function(number, policy) => drop(functions.insert(number, policy)),
                }
                placements.set_nodes(&nodes.clone().into());
                for (number, policy) in &functions {
                    placements.set_function(&id(*number), policy.as_deref());
                }
                counts.extend(placements.take_changes());
                for destination in DESTINATIONS {
                    let group = limit_group("openfaas-fn", destination);
                    let expected = expected_count(&functions, &nodes, destination);
                    prop_assert_eq!(counts.get(&group).copied().unwrap_or(1), expected);
                }
                prop_assert!(placements.take_changes().is_empty(), "each change once");
            }
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Nodes(u8),
        Function(u8, Option<Box<FunctionPolicy>>),
    }

    fn any_step() -> impl Strategy<Value = Step> {
        let policy = (0u8..16, 0u8..8).prop_map(|(nodes, destinations)| {
            let chosen = bits(destinations).map(|at| DESTINATIONS[at]);
            let list = chosen.collect::<Vec<_>>().join(", ");
            Box::new(FunctionPolicy {
                nodes: names(nodes),
                egress: super::super::parse_list(&list).unwrap(),
                ..FunctionPolicy::default()
            })
        });
        prop_oneof![
            (0u8..16).prop_map(Step::Nodes),
            (0u8..4, prop::option::weighted(0.8, policy))
                .prop_map(|(number, policy)| Step::Function(number, policy)),
        ]
    }

    fn bits(mask: u8) -> impl Iterator<Item = usize> {
        (0..8).filter(move |at| mask >> at & 1 == 1)
    }

    fn names(mask: u8) -> Vec<NodeName> {
        bits(mask).map(|at| NODES[at].parse().unwrap()).collect()
    }

    fn id(number: u8) -> FunctionId {
        format!("f{number}").parse().unwrap()
    }

    fn expected_count(
        functions: &BTreeMap<u8, Option<Box<FunctionPolicy>>>,
        nodes: &[NodeName],
        destination: &str,
    ) -> u32 {
        let reaches = |policy: &&FunctionPolicy| {
            let mut declared = policy.egress.iter();
            declared.any(|egress| egress.host_port() == destination)
        };
        let policies = functions
            .values()
            .flatten()
            .map(Box::as_ref)
            .filter(reaches);
        let policies: Vec<_> = policies.collect();
        let reaching = nodes
            .iter()
            .filter(|node| policies.iter().any(|policy| policy.runs_on(node)));
        u32::max(reaching.count() as u32, 1)
    }
}
