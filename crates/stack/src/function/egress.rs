//! Destinations outside, each a text as in the annotation or a map of settings.

use nearpath_types::EgressSpec;
use nearpath_types::egress::{EgressBuilder, EgressFault, InvalidEgress, SETTING_NAMES};

use crate::problem::{ProblemList, suggest_similar};
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::shorten;
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

/// A destination and its position.
pub(crate) struct DeclaredDestination {
    pub(crate) egress: EgressSpec,
    pub(crate) span: SourceSpan,
}

/// Reads a list of destinations; invalid ones are reported and left out.
pub(crate) fn read_destinations(
    node: &YamlNode,
    what: &str,
    problems: &mut ProblemList<'_>,
) -> Vec<DeclaredDestination> {
    let item = format!("an item of {what}");
    problems
        .expect_list(node, what)
        .iter()
        .filter_map(|node| read_destination(node, &item, problems))
        .collect()
}

fn read_destination(
    node: &YamlNode,
    what: &str,
    problems: &mut ProblemList<'_>,
) -> Option<DeclaredDestination> {
    let span = node.span;
    let egress = match &node.kind {
        YamlValue::Map(entries) => read_destination_map(span, entries, what, problems),
        _ => {
            let read: Result<_, InvalidEgress> = problems.expect_text(node, what)?.text.parse();
            read.map_err(|error| report_invalid(&error.item, &error.flaw, span, problems))
                .ok()
        }
    };
    Some(DeclaredDestination {
        egress: egress?,
        span,
    })
}

/// Reads `to: HOST:PORT` and settings.
fn read_destination_map(
    span: SourceSpan,
    entries: &[YamlEntry],
    what: &str,
    problems: &mut ProblemList<'_>,
) -> Option<EgressSpec> {
    let Some(to) = entries.iter().find(|entry| entry.key == "to") else {
        problems
            .add_error(span, format!("{what} has no `to`"))
            .set_help("add `to: HOST:PORT`");
        return None;
    };
    let to = problems.expect_text(&to.value, "to")?;
    let mut declared = EgressBuilder::for_address(&to.text)
        .map_err(|fault| report_invalid(&to.text, &fault, to.span, problems))
        .ok();
    // Settings are applied one by one: the problem then points at the setting instead of the whole
    // map.
    for entry in entries.iter().filter(|entry| entry.key != "to") {
        apply_setting(entry, &to.text, &mut declared, problems);
    }
    declared?
        .build()
        .map_err(|fault| report_invalid(&to.text, &fault, span, problems))
        .ok()
}

/// Applies one setting of a map. An unknown setting is an error here, because without it a limit
/// may not hold. Settings that begin with `x-` belong to the author.
fn apply_setting(
    entry: &YamlEntry,
    to: &str,
    declared: &mut Option<EgressBuilder>,
    problems: &mut ProblemList<'_>,
) {
    if entry.key.starts_with("x-") {
        return;
    }
    let Some(value) = setting_text(entry, problems) else {
        return;
    };
    let span = if SETTING_NAMES.contains(&entry.key.as_str()) {
        entry.value.span
    } else {
        entry.span
    };
    if let Some(Err(fault)) = declared
        .as_mut()
        .map(|declared| declared.set(&entry.key, &value))
    {
        report_invalid(to, &fault, span, problems);
    }
}

/// Text of a setting. A list, where several values are allowed, becomes a text with `|` between
/// them.
fn setting_text(entry: &YamlEntry, problems: &mut ProblemList<'_>) -> Option<String> {
    // The only setting with several values.
    if entry.key != "prefetch" || !matches!(entry.value.kind, YamlValue::List(_)) {
        return Some(problems.expect_text(&entry.value, &entry.key)?.text);
    }
    let mut texts = Vec::new();
    for item in problems.expect_list(&entry.value, &entry.key) {
        texts.push(problems.expect_text(item, "an item of prefetch")?.text);
    }
    Some(texts.join("|"))
}

/// Reports a problem of the destination `to`.
pub(super) fn report_invalid(
    to: &str,
    fault: &EgressFault,
    span: SourceSpan,
    problems: &mut ProblemList<'_>,
) {
    // Only mistyped settings and values have a suggestion, not wrong addresses.
    let help = fault
        .mistyped_word()
        .and_then(|(word, known)| suggest_similar(word, known.iter().copied()));
    problems
        .add_error(span, format!("invalid egress `{}`: {fault}", shorten(to)))
        .help = help;
}
