//! Destinations outside, each a text as in the annotation or a map of its settings.

use nearpath_types::Egress;
use nearpath_types::egress::{Declared, Flaw, InvalidEgress, SETTINGS};

use crate::problem::{Problems, did_you_mean};
use crate::text::Place;
use crate::yaml::shape::brief;
use crate::yaml::{Entry, Kind, Node};

/// A destination and where it is written.
pub(crate) struct Outside {
    pub(crate) egress: Egress,
    pub(crate) place: Place,
}

/// Reads a list of them; what is wrong is reported and left out.
pub(crate) fn read(node: &Node, what: &str, problems: &mut Problems<'_>) -> Vec<Outside> {
    let item = format!("an item of {what}");
    problems.list(node, what).iter().filter_map(|node| one(node, &item, problems)).collect()
}

fn one(node: &Node, what: &str, problems: &mut Problems<'_>) -> Option<Outside> {
    let place = node.place;
    let egress = match &node.kind {
        Kind::Map(entries) => map(place, entries, what, problems),
        _ => {
            let read: Result<_, InvalidEgress> = problems.text(node, what)?.text.parse();
            read.map_err(|error| tell(&error.item, &error.flaw, place, problems)).ok()
        }
    };
    Some(Outside { egress: egress?, place })
}

/// `to: HOST:PORT` and settings.
fn map(place: Place, entries: &[Entry], what: &str, problems: &mut Problems<'_>) -> Option<Egress> {
    let Some(to) = entries.iter().find(|entry| entry.key == "to") else {
        problems.error(place, format!("{what} has no `to`")).help("add `to: HOST:PORT`");
        return None;
    };
    let to = problems.text(&to.value, "to")?;
    let mut declared = Declared::to(&to.text).map_err(|flaw| tell(&to.text, &flaw, to.place, problems)).ok();
    for entry in entries.iter().filter(|entry| entry.key != "to") {
        setting(entry, &to.text, &mut declared, problems);
    }
    declared?.finish().map_err(|flaw| tell(&to.text, &flaw, place, problems)).ok()
}

/// One setting of a map. An unknown one is an error here, since without it a limit may not hold; those that begin with `x-` are the author's.
fn setting(entry: &Entry, to: &str, declared: &mut Option<Declared>, problems: &mut Problems<'_>) {
    if entry.key.starts_with("x-") {
        return;
    }
    let Some(value) = value(entry, problems) else { return };
    let place = if SETTINGS.contains(&entry.key.as_str()) { entry.value.place } else { entry.place };
    if let Some(Err(flaw)) = declared.as_mut().map(|declared| declared.set(&entry.key, &value)) {
        tell(to, &flaw, place, problems);
    }
}

/// A setting's text; a list, where there may be several, is one with `|` between.
fn value(entry: &Entry, problems: &mut Problems<'_>) -> Option<String> {
    if entry.key != "prefetch" || !matches!(entry.value.kind, Kind::List(_)) {
        return Some(problems.text(&entry.value, &entry.key)?.text);
    }
    let mut texts = Vec::new();
    for item in problems.list(&entry.value, &entry.key) {
        texts.push(problems.text(item, "an item of prefetch")?.text);
    }
    Some(texts.join("|"))
}

/// Reports what is wrong with the destination `to`.
pub(super) fn tell(to: &str, flaw: &Flaw, place: Place, problems: &mut Problems<'_>) {
    let help = flaw.mistyped().and_then(|(word, known)| did_you_mean(word, known.iter().copied()));
    problems.error(place, format!("invalid egress `{}`: {flaw}", brief(to))).help = help;
}
