//! Events that reach no subscriber, because its function runs on other nodes alone. Pure.

use std::collections::BTreeMap;

use nearpath_controller::DeclaredFunction;
use nearpath_types::policy::{PUBLISHES, SUBSCRIBES};
use nearpath_types::{FunctionId, FunctionPolicy, NodeAddresses, NodeName, topic};

/// Returns a warning for each publisher and subscriber of which the subscriber is missing on a node of the
/// publisher: events stay in the memory of one machine.
pub(crate) fn warn_unreached_subscribers(
    functions: &BTreeMap<FunctionId, DeclaredFunction>,
    nodes: &NodeAddresses,
) -> Vec<String> {
    let policies: Vec<_> = functions.iter().filter_map(policy_with_topics).collect();
    let pairs = policies.iter().flat_map(|publisher| {
        let subscribers = policies
            .iter()
            .filter(|subscriber| is_subscriber(publisher, subscriber));
        subscribers.map(move |subscriber| (publisher, subscriber))
    });
    pairs
        .filter_map(|((publisher, from), (subscriber, to))| {
            let unreached = |node: &&NodeName| from.runs_on(node) && !to.runs_on(node);
            let unreached: Vec<_> = nodes.keys().filter(unreached).map(NodeName::as_str).collect();
            (!unreached.is_empty()).then(|| {
                format!(
                    "events of {publisher} on node {} do not reach {subscriber}, which does not run there: \
                     let both run on the same nodes, or call it instead",
                    unreached.join(", ")
                )
            })
        })
        .collect()
}

/// Returns the policy of a function with topics; faults of policies are reported elsewhere.
fn policy_with_topics<'a>(
    (id, function): (&'a FunctionId, &DeclaredFunction),
) -> Option<(&'a FunctionId, FunctionPolicy)> {
    let annotations = &function.spec.annotations;
    let has_topics = [PUBLISHES, SUBSCRIBES]
        .iter()
        .any(|key| annotations.contains_key(*key));
    // Few functions have topics, and only theirs are parsed.
    let policy = has_topics.then(|| FunctionPolicy::from_spec(&function.spec));
    Some((id, policy?.ok()?))
}

fn is_subscriber(
    (publisher, from): &(&FunctionId, FunctionPolicy),
    (subscriber, to): &(&FunctionId, FunctionPolicy),
) -> bool {
    let is_same_chain = publisher.namespace == subscriber.namespace && from.chain == to.chain;
    let has_topic = || {
        let mut filters = to.subscribes.iter();
        filters.any(|filter| {
            let mut published = from.publishes.iter();
            published.any(|topics| topic::filters_overlap(topics, filter))
        })
    };
    is_same_chain && from.chain.is_some() && has_topic()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::FunctionSpec;
    use nearpath_types::policy::{CHAIN, NODES};

    fn declared(name: &str, annotations: &[(&str, &str)]) -> (FunctionId, DeclaredFunction) {
        let mut spec = FunctionSpec::named(name.parse().unwrap());
        let pairs = annotations.iter();
        spec.annotations = pairs
            .map(|(key, value)| ((*key).into(), (*value).into()))
            .collect();
        (spec.id(), DeclaredFunction { spec, folder: None })
    }

    fn warnings(publisher: &[(&str, &str)], subscriber: &[(&str, &str)]) -> Vec<String> {
        let chain = [(CHAIN, "shop")];
        let functions = [
            declared("orders", &[&chain[..], publisher].concat()),
            declared("mail", &[&chain[..], subscriber].concat()),
        ];
        let nodes = ["a", "b", "c"].map(|name| (name.parse().unwrap(), "x:1".to_owned()));
        warn_unreached_subscribers(&functions.into(), &nodes.into())
    }

    #[test]
    fn a_subscriber_on_other_nodes_is_named_with_the_nodes_that_it_misses() {
        let publishes = (PUBLISHES, "order/placed");
        let found = warnings(&[publishes], &[(SUBSCRIBES, "order/+"), (NODES, "b")]);
        let expected = "events of orders.openfaas-fn on node a, c do not reach mail.openfaas-fn";
        assert!(
            found.len() == 1 && found[0].starts_with(expected),
            "{found:?}"
        );
    }

    #[test]
    fn functions_on_the_same_nodes_and_other_topics_need_no_warning() {
        let publishes = (PUBLISHES, "order/placed");
        let subscribes = (SUBSCRIBES, "order/+");
        for (publisher, subscriber) in [
            (vec![publishes], vec![subscribes]),
            (
                vec![publishes, (NODES, "b")],
                vec![subscribes, (NODES, "a, b")],
            ),
            (vec![publishes], vec![(SUBSCRIBES, "stock/+"), (NODES, "b")]),
            (vec![], vec![subscribes, (NODES, "b")]),
        ] {
            assert_eq!(warnings(&publisher, &subscriber), Vec::<String>::new());
        }
    }
}
