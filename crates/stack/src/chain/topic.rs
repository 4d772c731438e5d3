//! `topics:` of a chain: publishers and subscribers of events.
//!
//! ```yaml
//! topics:
//!   order/placed: { from: [checkout], to: [mail, audit] }
//! ```
//!
//! Topics become annotations of publishers and subscribers. A publisher does not wait for its
//! subscribers, so cycles of events are allowed, unlike cycles of calls.

use nearpath_types::{policy, topic};

use super::declaration::ChainDeclaration;
use super::function_names::{FunctionNames, ResolvedName};
use super::membership::ChainMembership;
use crate::function::FunctionDraft;
use crate::problem::ProblemList;
use crate::yaml::typed_nodes::{SpannedText, shorten};
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

const TOPIC_KEYS: &[&str] = &["from", "to"];

/// A topic, or a filter of topics.
pub(super) struct TopicDeclaration {
    name: SpannedText,
    from: Vec<SpannedText>,
    to: Vec<SpannedText>,
}

/// Reads one entry of `topics:`.
pub(super) fn read_topic(entry: &YamlEntry, problems: &mut ProblemList<'_>) -> TopicDeclaration {
    let name = SpannedText {
        text: entry.key.clone(),
        span: entry.span,
    };
    if let Err(error) = topic::check_filter(&name.text) {
        problems.add_error(name.span, error.to_string());
    // The annotation is a list with commas between the topics.
    } else if name.text.contains(',') {
        problems
            .add_error(
                name.span,
                format!("topic `{}` has a comma", shorten(&name.text)),
            )
            .set_help("write one entry for each");
    }
    let section = format!("topic {}", shorten(&name.text));
    let mut topic = TopicDeclaration {
        name,
        from: Vec::new(),
        to: Vec::new(),
    };
    for field in problems.expect_map(&entry.value, &section) {
        match field.key.as_str() {
            "from" => topic.from = read_names(&field.value, &format!("{section}: from"), problems),
            "to" => topic.to = read_names(&field.value, &format!("{section}: to"), problems),
            _ => problems.warn_unknown_key(field, &section, TOPIC_KEYS),
        }
    }
    for (key, list) in [("from", &topic.from), ("to", &topic.to)] {
        if list.is_empty() {
            let problem =
                problems.add_error(entry.span, format!("{section} has no function in `{key}`"));
            problem.set_help("write `{ from: [publisher], to: [subscriber] }`");
        }
    }
    topic
}

/// Reads one name, or a list of names.
fn read_names(node: &YamlNode, what: &str, problems: &mut ProblemList<'_>) -> Vec<SpannedText> {
    match node.kind {
        // A single name needs no brackets, since most events have one publisher.
        YamlValue::Scalar { .. } => problems.expect_text(node, what).into_iter().collect(),
        _ => problems.expect_text_list(node, what),
    }
}

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
