//! `topics:` of a chain: who sends which events, and who wants them.
//!
//! ```yaml
//! topics:
//!   order/placed: { from: [checkout], to: [mail, audit] }
//! ```
//!
//! They become the annotations of publishers and subscribers. Nobody waits for an event: so events may go round, where calls
//! may not.

use nearpath_types::{policy, topic};

use super::{Chain, End, Homes, Names};
use crate::function::Draft;
use crate::problem::Problems;
use crate::yaml::shape::{Text, brief};
use crate::yaml::{Entry, Kind, Node};

const KEYS: &[&str] = &["from", "to"];

/// One topic, or filter of topics.
pub(super) struct Topic {
    name: Text,
    from: Vec<Text>,
    to: Vec<Text>,
}

/// Reads one entry of `topics:`.
pub(super) fn read(entry: &Entry, problems: &mut Problems<'_>) -> Topic {
    let name = Text { text: entry.key.clone(), place: entry.place };
    if let Err(error) = topic::check_filter(&name.text) {
        problems.error(name.place, error.to_string());
    } else if name.text.contains(',') {
        problems
            .error(name.place, format!("topic `{}` has a comma", brief(&name.text)))
            .help("write one entry for each");
    }
    let home = format!("topic {}", brief(&name.text));
    let mut topic = Topic { name, from: Vec::new(), to: Vec::new() };
    for field in problems.map(&entry.value, &home) {
        match field.key.as_str() {
            "from" => topic.from = names(&field.value, &format!("{home}: from"), problems),
            "to" => topic.to = names(&field.value, &format!("{home}: to"), problems),
            _ => problems.unknown(field, &home, KEYS),
        }
    }
    for (key, list) in [("from", &topic.from), ("to", &topic.to)] {
        if list.is_empty() {
            let problem = problems.error(entry.place, format!("{home} has nobody in `{key}`"));
            problem.help("write `{ from: [publisher], to: [subscriber] }`");
        }
    }
    topic
}

/// One name, or a list of names.
fn names(node: &Node, what: &str, problems: &mut Problems<'_>) -> Vec<Text> {
    match node.kind {
        Kind::Scalar { .. } => problems.text(node, what).into_iter().collect(),
        _ => problems.texts(node, what),
    }
}

/// Writes a chain's topics into the annotations of those that send and want them.
pub(super) fn apply(
    chain: &Chain,
    names: &Names<'_>,
    homes: &mut Homes,
    drafts: &mut [Draft],
    problems: &mut Problems<'_>,
) {
    for topic in &chain.topics {
        for (name, publisher) in found(&topic.from, names, problems) {
            homes.calls_in(publisher, &chain.name, name.place, drafts, problems);
            drafts[publisher].add(policy::PUBLISHES, &topic.name.text, name.place);
        }
        for (name, subscriber) in found(&topic.to, names, problems) {
            homes.called_in(subscriber, &chain.name.text);
            drafts[subscriber].add(policy::SUBSCRIBES, &topic.name.text, name.place);
        }
    }
}

/// The functions of this file that are named.
fn found<'t>(texts: &'t [Text], names: &Names<'_>, problems: &mut Problems<'_>) -> Vec<(&'t Text, usize)> {
    let mut found = Vec::new();
    for text in texts {
        match names.find(text, problems) {
            End::Here(index) => found.push((text, index)),
            End::Elsewhere(id) => {
                let why = format!("{id} is not below `functions:`: events stay within the functions of this file");
                problems.error(text.place, why);
            }
            End::Broken => {}
        }
    }
    found
}
