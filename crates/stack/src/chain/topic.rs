//! `topics:` of a chain: publishers and subscribers of events.
//!
//! ```yaml
//! topics:
//!   order/placed: { from: [checkout], to: [mail, audit] }
//! ```
//!
//! Topics become annotations of publishers and subscribers. A publisher does not wait for its
//! subscribers, so cycles of events are allowed, unlike cycles of calls.

use nearpath_types::policy;

use super::declaration::ChainDeclaration;
use super::function_names::{FunctionNames, ResolvedName};
use super::membership::ChainMembership;
use crate::function::FunctionDraft;
use crate::problem::ProblemList;
use crate::yaml::typed_nodes::SpannedText;

/// Writes the topics of a chain into the annotations of publishers and subscribers.
pub(super) fn apply_topics(
    chain: &ChainDeclaration,
    names: &FunctionNames<'_>,
    membership: &mut ChainMembership,
    drafts: &mut [FunctionDraft],
    problems: &mut ProblemList<'_>,
) {
    for topic in &chain.topics {
        for (name, publisher) in resolve_names(&topic.from, names, problems) {
            membership.add_caller(publisher, &chain.name, name.span, drafts, problems);
            drafts[publisher].add_list_item(policy::PUBLISHES, &topic.name.text, name.span);
        }
        for (name, subscriber) in resolve_names(&topic.to, names, problems) {
            membership.add_callee(subscriber, &chain.name.text);
            drafts[subscriber].add_list_item(policy::SUBSCRIBES, &topic.name.text, name.span);
        }
    }
}

/// Resolves names to functions of this file.
fn resolve_names<'t>(
    texts: &'t [SpannedText],
    names: &FunctionNames<'_>,
    problems: &mut ProblemList<'_>,
) -> Vec<(&'t SpannedText, usize)> {
    let mut functions = Vec::new();
    for text in texts {
        match names.resolve_name(text, problems) {
            ResolvedName::Local(index) => functions.push((text, index)),
            ResolvedName::External(id) => {
                let why = format!(
                    "{id} is not below `functions:`: events stay within the functions of this file"
                );
                problems.add_error(text.span, why);
            }
            ResolvedName::Broken => {}
        }
    }
    functions
}
