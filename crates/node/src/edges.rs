//! The edges of a chain, from what its functions declare: calls, the names they are made by, and
//! events. Pure.
//!
//! An edge for events leads from a function that publishes to one that subscribes, when a topic can
//! be what both name. It permits events alone, unless the two have an edge for calls as well.
//! All subscribers that run only on other nodes share one edge to the gateway.

use std::collections::{BTreeMap, HashMap};

use nearpath_domain::protocol::EdgeTerms;
use nearpath_domain::topology::FunctionEdge;
use nearpath_types::{FunctionId, FunctionPolicy, topic};

/// Caller and callee, and what the edge is good for.
pub(crate) type ChainEdges = HashMap<FunctionEdge, EdgeTerms>;

/// Returns the edges between the functions of one domain, and to its subscribers on other nodes.
pub(crate) fn domain_edges<'a>(
    functions: impl Iterator<Item = (&'a FunctionId, &'a FunctionPolicy)>,
    remote_subscribers: &[&FunctionPolicy],
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
            edges.insert((caller.clone(), Some(callee.clone())), terms);
        }
        let local = functions.iter().map(|(&id, wanting)| (Some(id), *wanting));
        let remote = remote_subscribers.iter().map(|wanting| (None, *wanting));
        for (callee, wanting) in local.chain(remote) {
            let topics = matching_topics(&policy.publishes, &wanting.subscribes);
            add_topics(&mut edges, (caller.clone(), callee.cloned()), topics);
        }
    }
    edges
}

/// Adds topics to an edge.
fn add_topics(edges: &mut ChainEdges, edge: FunctionEdge, topics: Vec<String>) {
    if topics.is_empty() {
        return;
    }
    let events_only = EdgeTerms {
        events_only: true,
        ..EdgeTerms::default()
    };
    // A declared call already permits messages; topics are only added to it.
    let known = &mut edges.entry(edge).or_insert(events_only).topics;
    let is_new = |topic: &String| !known.contains(topic);
    let new: Vec<_> = topics.into_iter().filter(is_new).collect();
    known.extend(new);
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
        let shop = domain_edges(functions.iter().map(|(id, policy)| (id, policy)), &[]);
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
        let edge_to = |callee| (function_id("checkout"), Some(function_id(callee)));
        assert_eq!(shop[&edge_to("mail")], both);
        let events = EdgeTerms {
            topics: vec!["#".into()],
            events_only: true,
            ..EdgeTerms::default()
        };
        assert_eq!(shop[&edge_to("audit")], events);
    }

    #[test]
    fn subscribers_on_other_nodes_share_an_edge_to_the_gateway() {
        let checkout = (
            function_id("checkout"),
            policy_of(&[], &["order/placed"], &[]),
        );
        let remote = [&["order/+", "stock/#"][..], &["order/+", "#"], &["stock/#"]];
        let remote = remote.map(|filters| policy_of(&[], &[], filters));
        let functions = [&checkout].into_iter().map(|(id, policy)| (id, policy));
        let edges = domain_edges(functions.clone(), &remote.each_ref());
        let events = EdgeTerms {
            topics: vec!["order/+".into(), "#".into()],
            events_only: true,
            ..EdgeTerms::default()
        };
        assert_eq!(
            edges,
            ChainEdges::from([((function_id("checkout"), None), events)])
        );
        assert_eq!(domain_edges(functions, &[&remote[2]]), ChainEdges::new());
    }
}
