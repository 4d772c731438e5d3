//! `topics:` of a chain as they are declared.

use nearpath_types::topic;

use crate::problem::ProblemList;
use crate::yaml::typed_nodes::{SpannedText, shorten};
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

const TOPIC_KEYS: &[&str] = &["from", "to"];

/// A topic, or a filter of topics.
pub(super) struct TopicDeclaration {
    pub(super) name: SpannedText,
    /// Publishers.
    pub(super) from: Vec<SpannedText>,
    /// Subscribers.
    pub(super) to: Vec<SpannedText>,
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
