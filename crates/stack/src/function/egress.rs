//! Destinations outside, each a text as in the annotation or a map of its settings.

use nearpath_types::EgressSpec;
use nearpath_types::egress::{EgressBuilder, EgressFault, InvalidEgress, SETTING_NAMES};

use crate::problem::{ProblemList, suggest_similar};
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::shorten;
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

/// A destination and where it is written.
pub(crate) struct DeclaredDestination {
    pub(crate) egress: EgressSpec,
    pub(crate) place: SourceSpan,
}

/// Reads a list of them; what is wrong is reported and left out.
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
    let place = node.place;
    let egress = match &node.kind {
        YamlValue::Map(entries) => read_destination_map(place, entries, what, problems),
        _ => {
            let read: Result<_, InvalidEgress> = problems.expect_text(node, what)?.text.parse();
            read.map_err(|error| report_invalid(&error.item, &error.flaw, place, problems))
                .ok()
        }
    };
    Some(DeclaredDestination {
        egress: egress?,
        place,
    })
}

/// `to: HOST:PORT` and settings.
fn read_destination_map(
    place: SourceSpan,
    entries: &[YamlEntry],
    what: &str,
    problems: &mut ProblemList<'_>,
) -> Option<EgressSpec> {
    let Some(to) = entries.iter().find(|entry| entry.key == "to") else {
        problems
            .add_error(place, format!("{what} has no `to`"))
            .set_help("add `to: HOST:PORT`");
        return None;
    };
    let to = problems.expect_text(&to.value, "to")?;
    let mut declared = EgressBuilder::for_address(&to.text)
        .map_err(|flaw| report_invalid(&to.text, &flaw, to.place, problems))
        .ok();
    for entry in entries.iter().filter(|entry| entry.key != "to") {
        apply_setting(entry, &to.text, &mut declared, problems);
    }
    declared?
        .build()
        .map_err(|flaw| report_invalid(&to.text, &flaw, place, problems))
        .ok()
}

/// One setting of a map. An unknown one is an error here, since without it a limit may not hold; those that begin with `x-` are the author's.
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
    let place = if SETTING_NAMES.contains(&entry.key.as_str()) {
        entry.value.place
    } else {
        entry.place
    };
    if let Some(Err(flaw)) = declared
        .as_mut()
        .map(|declared| declared.set(&entry.key, &value))
    {
        report_invalid(to, &flaw, place, problems);
    }
}

/// A setting's text; a list, where there may be several, is one with `|` between.
fn setting_text(entry: &YamlEntry, problems: &mut ProblemList<'_>) -> Option<String> {
    if entry.key != "prefetch" || !matches!(entry.value.kind, YamlValue::List(_)) {
        return Some(problems.expect_text(&entry.value, &entry.key)?.text);
    }
    let mut texts = Vec::new();
    for item in problems.expect_list(&entry.value, &entry.key) {
        texts.push(problems.expect_text(item, "an item of prefetch")?.text);
    }
    Some(texts.join("|"))
}

/// Reports what is wrong with the destination `to`.
pub(super) fn report_invalid(
    to: &str,
    flaw: &EgressFault,
    place: SourceSpan,
    problems: &mut ProblemList<'_>,
) {
    let help = flaw
        .mistyped_word()
        .and_then(|(word, known)| suggest_similar(word, known.iter().copied()));
    problems
        .add_error(place, format!("invalid egress `{}`: {flaw}", shorten(to)))
        .help = help;
}
