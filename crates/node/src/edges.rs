//! The edges of a chain, from what its functions declare: calls, the names they are made by, and
//! events. Pure.
//!
//! An edge for events leads from a function that publishes to one that subscribes, when a topic can
//! be what both name. It permits events alone, unless the two have an edge for calls as well.

use std::collections::{BTreeMap, HashMap};

use nearpath_domain::protocol::EdgeTerms;
use nearpath_types::{FunctionId, FunctionPolicy, topic};

/// Caller and callee, and what the edge is good for.
pub(crate) type ChainEdges = HashMap<(FunctionId, FunctionId), EdgeTerms>;

/// Returns the edges between the functions of one domain.
pub(crate) fn domain_edges<'a>(
    functions: impl Iterator<Item = (&'a FunctionId, &'a FunctionPolicy)>,
) -> ChainEdges {
    let functions: BTreeMap<_, _> = functions.collect();
    let mut edges = ChainEdges::new();
    for (&caller, policy) in &functions {
        for callee in policy
            .calls
            .iter()
            .filter(|callee| functions.contains_key(callee))
        {
            let aliases = policy
                .aliases
                .iter()
                .filter(|(_, meant)| meant == callee)
                .map(|(alias, _)| alias.clone());
            let terms = EdgeTerms {
                aliases: aliases.collect(),
                ..EdgeTerms::default()
            };
            edges.insert((caller.clone(), callee.clone()), terms);
        }
        for (&callee, wanting) in &functions {
            let topics = matching_topics(&policy.publishes, &wanting.subscribes);
            if !topics.is_empty() {
                let events_only = EdgeTerms {
                    events_only: true,
                    ..EdgeTerms::default()
                };
                edges
                    .entry((caller.clone(), callee.clone()))
                    // A declared call already permits messages; topics are only added to it.
                    .or_insert(events_only)
                    .topics = topics;
            }
        }
    }
    edges
}

/// Those filters of a subscriber that can select what is published.
fn matching_topics(publishes: &[String], subscribes: &[String]) -> Vec<String> {
    let meets = |filter: &&String| {
        publishes
            .iter()
            .any(|published| topic::filters_overlap(published, filter))
    };
    subscribes.iter().filter(meets).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function_id(name: &str) -> FunctionId {
        name.parse().unwrap()
    }

    fn policy_of(calls: &[&str], publishes: &[&str], subscribes: &[&str]) -> FunctionPolicy {
        let texts = |list: &[&str]| list.iter().map(ToString::to_string).collect();
        FunctionPolicy {
            chain: Some("shop".into()),
            calls: calls.iter().map(|name| function_id(name)).collect(),
            publishes: texts(publishes),
            subscribes: texts(subscribes),
            ..FunctionPolicy::default()
        }
    }

    #[test]
    fn events_have_edges_of_their_own() {
        let checkout = FunctionPolicy {
            aliases: vec![(function_id("post"), function_id("mail"))],
            ..policy_of(&["mail", "elsewhere"], &["order/placed"], &[])
        };
        let functions = [
            (function_id("checkout"), checkout),
            (
                function_id("mail"),
                policy_of(&[], &[], &["order/+", "stock/#"]),
            ),
            (function_id("audit"), policy_of(&[], &[], &["#"])),
            (function_id("ads"), policy_of(&[], &[], &["stock/#"])),
        ];
        let shop = domain_edges(functions.iter().map(|(id, policy)| (id, policy)));
        assert_eq!(
            shop.len(),
            2,
            "no edge leaves the chain, none is for a topic that nobody sends"
        );
        let both = EdgeTerms {
            aliases: vec![function_id("post")],
            topics: vec!["order/+".into()],
            events_only: false,
        };
        assert_eq!(shop[&(function_id("checkout"), function_id("mail"))], both);
        let events = EdgeTerms {
            topics: vec!["#".into()],
            events_only: true,
            ..EdgeTerms::default()
        };
        assert_eq!(
            shop[&(function_id("checkout"), function_id("audit"))],
            events
        );
    }
}
