//! Permission of calls between instances. Default deny: a chain must declare each edge.

use std::net::IpAddr;

use nearpath_types::{FunctionId, PlatformError, Reason};

use crate::COMPONENT;
use crate::function::FunctionEntry;

/// Checks whether the instance at `addr`, an instance of `caller`, may call `callee`.
///
/// # Errors
/// `not_allowed`, with the line of stack.yml that would permit the call.
pub(crate) fn check_edge(
    caller: Option<&FunctionEntry>,
    addr: IpAddr,
    callee: &FunctionId,
) -> Result<(), PlatformError> {
    // The table holds all instances of this node, so this one was removed or never existed.
    let Some(caller) = caller else {
        let message = format!("{addr} is not the address of an instance on this node");
        return Err(PlatformError::new(COMPONENT, Reason::NotAllowed, message));
    };
    let policy = &caller.route().policy;
    if policy.may_call(callee) {
        return Ok(());
    }
    let chain = policy.chain.as_deref().unwrap_or("CHAIN");
    let line = format!(
        "chains: {{{chain}: {{edges: {{{}: [{}]}}}}}}",
        caller.id.name,
        short_name(callee, &caller.id)
    );
    let message = format!(
        "{} may not call {callee}: that edge is not declared; add to stack.yml: {line}",
        caller.name
    );
    Err(PlatformError::new(COMPONENT, Reason::NotAllowed, message).governed_by("chains"))
}

/// Returns the callee as its caller writes it: without the namespace if both share it.
fn short_name(callee: &FunctionId, caller: &FunctionId) -> String {
    match callee.namespace == caller.namespace {
        true => callee.name.to_string(),
        false => callee.to_string(),
    }
}
