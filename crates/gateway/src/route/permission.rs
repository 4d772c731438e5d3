//! Permission of calls and events between functions. They are denied unless a chain declares the edge, or
//! both functions declare the topic.

use std::net::IpAddr;
use std::sync::Arc;

use nearpath_types::{FunctionId, FunctionPolicy, NodeName, PlatformError, Reason, policy, topic};

use crate::COMPONENT;
use crate::function::{EdgeCounters, FunctionEntry};

/// Checks that the instance at `addr` may call `callee`. `caller` is the function of that instance. Returns
/// the counters of that edge on the serving thread.
///
/// # Errors
/// `not_allowed`, with the line of stack.yml that would permit the call.
pub(crate) fn check_edge(
    caller: Option<&FunctionEntry>,
    addr: IpAddr,
    callee: &FunctionId,
    thread_number: usize,
) -> Result<Arc<EdgeCounters>, PlatformError> {
    // The routing table has every instance of this node: this one was removed or never existed.
    let Some(caller) = caller else {
        let message = format!("{addr} is not the address of an instance on this node");
        return Err(PlatformError::new(COMPONENT, Reason::NotAllowed, message));
    };
    let route = caller.route();
    match route.edge_to(callee) {
        Some(edge) => Ok(edge.counters_of(thread_number)),
        None => Err(undeclared_edge_error(caller, &route.policy, callee)),
    }
}

fn undeclared_edge_error(
    caller: &FunctionEntry,
    policy: &FunctionPolicy,
    callee: &FunctionId,
) -> PlatformError {
    // A function outside chains has no chain name to suggest, so the text has a placeholder.
    let chain = policy.chain.as_deref().unwrap_or("CHAIN");
    let stack_line = format!(
        "chains: {{{chain}: {{edges: {{{}: [{}]}}}}}}",
        caller.id.name,
        short_name(callee, &caller.id)
    );
    let message = format!(
        "{} may not call {callee}: that edge is not declared; add to stack.yml: {stack_line}",
        caller.name
    );
    PlatformError::new(COMPONENT, Reason::NotAllowed, message).governed_by("chains")
}

/// Checks that `publisher` may send an event of a topic to `subscriber`, in the same security domain.
///
/// # Errors
/// `not_allowed`, with the declaration that is missing.
pub(crate) fn check_event(
    publisher: &FunctionEntry,
    topic_name: &str,
    subscriber: &FunctionEntry,
) -> Result<(), PlatformError> {
    let any_selects = |filters: &[String]| {
        filters
            .iter()
            .any(|one| topic::filter_matches(one, topic_name))
    };
    let refuse = |why: String, setting| {
        let message = format!(
            "{} may not send an event of topic {topic_name:?} to {}: {why}",
            publisher.name, subscriber.name
        );
        Err(PlatformError::new(COMPONENT, Reason::NotAllowed, message).governed_by(setting))
    };
    if !topic::is_topic(topic_name) {
        return refuse("a topic has no + and #".to_owned(), policy::PUBLISHES);
    }
    let (from, to) = (publisher.route(), subscriber.route());
    if from.domain.is_none() || from.domain != to.domain {
        return refuse(
            "they share no chain and isolation".to_owned(),
            policy::CHAIN,
        );
    }
    if !any_selects(&from.policy.publishes) {
        let why = format!(
            "{} does not publish it: add it to `from` of the topic",
            publisher.name
        );
        return refuse(why, policy::PUBLISHES);
    }
    if !any_selects(&to.policy.subscribes) {
        let why = format!(
            "{} does not subscribe to it: add it to `to` of the topic",
            subscriber.name
        );
        return refuse(why, policy::SUBSCRIBES);
    }
    Ok(())
}

/// Checks that `node` may call `callee`, or send it an event of `topic`, for a function that runs on it.
/// `name` is that function, as the node says, and `caller` what this node knows of it.
///
/// # Errors
/// `not_allowed`, with node and function.
pub(crate) fn check_node_caller(
    caller: Option<&FunctionEntry>,
    name: &str,
    node: &NodeName,
    callee: &FunctionEntry,
    topic: Option<&str>,
) -> Result<(), PlatformError> {
    let refuse = |why: String| {
        let message = format!("node {node} may not call {} for {name}: {why}", callee.name);
        PlatformError::new(COMPONENT, Reason::NotAllowed, message)
    };
    let Some(caller) = caller else {
        return Err(refuse("this node knows no such function".to_owned()));
    };
    let policy = &caller.route().policy;
    if !policy.runs_on(node) {
        let nodes: Vec<_> = policy.nodes.iter().map(NodeName::as_str).collect();
        let why = format!("it runs on {}", nodes.join(", "));
        return Err(refuse(why).governed_by(policy::NODES));
    }
    match topic {
        Some(topic) => check_event(caller, topic, callee),
        // Without its counters: the caller's node counts the call.
        None if policy.may_call(&callee.id) => Ok(()),
        None => Err(undeclared_edge_error(caller, policy, &callee.id)),
    }
}

/// Returns the callee as its caller writes it: without the namespace if both share it.
fn short_name(callee: &FunctionId, caller: &FunctionId) -> String {
    match callee.namespace == caller.namespace {
        true => callee.name.to_string(),
        false => callee.to_string(),
    }
}
