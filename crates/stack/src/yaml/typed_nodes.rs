//! Reading nodes as what they should be. Each reader reports what does not fit and gives back what does, so that one bad
//! value hides no other.

use std::collections::BTreeMap;

use crate::problem::{ProblemList, suggest_similar};
use crate::source::SourceSpan;
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

/// A text and where it is written.
#[derive(Debug, Clone)]
pub(crate) struct SpannedText {
    pub(crate) text: String,
    pub(crate) place: SourceSpan,
}

impl ProblemList<'_> {
    /// The entries of a map; nothing when the value is null or, with an error, something else.
    pub(crate) fn expect_map<'n>(&mut self, node: &'n YamlNode, what: &str) -> &'n [YamlEntry] {
        match &node.kind {
            YamlValue::Map(entries) => entries,
            _ => {
                self.report_type_mismatch(node, what, "a map (`key: value` lines)");
                &[]
            }
        }
    }

    /// The items of a list; nothing when the value is null or, with an error, something else.
    pub(crate) fn expect_list<'n>(&mut self, node: &'n YamlNode, what: &str) -> &'n [YamlNode] {
        match &node.kind {
            YamlValue::List(nodes) => nodes,
            _ => {
                self.report_type_mismatch(node, what, "a list (`- item` lines)");
                &[]
            }
        }
    }

    /// A text, number or boolean, as written; nothing when it is null.
    pub(crate) fn expect_text(&mut self, node: &YamlNode, what: &str) -> Option<SpannedText> {
        match &node.kind {
            YamlValue::Scalar { text, .. } if !node.is_null() => Some(SpannedText {
                text: text.clone(),
                place: node.place,
            }),
            _ => {
                self.report_type_mismatch(node, what, "text");
                None
            }
        }
    }

    /// A list of texts.
    pub(crate) fn expect_text_list(&mut self, node: &YamlNode, what: &str) -> Vec<SpannedText> {
        let items = self.expect_list(node, what).iter();
        items
            .filter_map(|item| self.expect_text(item, &format!("an item of {what}")))
            .collect()
    }

    /// A map of texts; a null value is an empty text.
    pub(crate) fn expect_text_map(
        &mut self,
        node: &YamlNode,
        what: &str,
    ) -> BTreeMap<String, SpannedText> {
        let mut texts = BTreeMap::new();
        for entry in self.expect_map(node, what) {
            let empty = || SpannedText {
                text: String::new(),
                place: entry.place,
            };
            let value = self.expect_text(&entry.value, &format!("{what}.{}", entry.key));
            let text = value.map_or_else(empty, |value| SpannedText {
                text: value.text,
                place: entry.place.extend_to(value.place),
            });
            texts.insert(entry.key.clone(), text);
        }
        texts
    }

    /// A boolean.
    pub(crate) fn expect_bool(&mut self, node: &YamlNode, what: &str) -> Option<bool> {
        let text = self.expect_text(node, what)?;
        match text.text.as_str() {
            "true" | "True" | "TRUE" | "yes" | "on" => Some(true),
            "false" | "False" | "FALSE" | "no" | "off" => Some(false),
            _ => {
                self.add_error(
                    text.place,
                    format!("{what} is true or false, not `{}`", shorten(&text.text)),
                );
                None
            }
        }
    }

    /// Warns of a key that nothing reads. Keys that begin with `x-` are the author's own.
    pub(crate) fn warn_unknown_key(
        &mut self,
        entry: &YamlEntry,
        section: &str,
        known_keys: &[&str],
    ) {
        if entry.key.starts_with("x-") {
            return;
        }
        let problem = self.add_warning(
            entry.place,
            format!(
                "unknown key `{}` in {section}: it is ignored",
                shorten(&entry.key)
            ),
        );
        problem.help = suggest_similar(&entry.key, known_keys.iter().copied());
    }

    fn report_type_mismatch(&mut self, node: &YamlNode, what: &str, expected: &str) {
        let found = match &node.kind {
            _ if node.is_null() => return,
            YamlValue::Scalar { .. } => "text",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a map",
        };
        self.add_error(
            node.place,
            format!("{what} should be {expected}, and is {found}"),
        );
    }
}

impl SourceSpan {
    /// From the start of this place to the end of another one, when that follows; else the place itself.
    fn extend_to(self, other: Self) -> Self {
        match other.start >= self.start {
            true => Self {
                start: self.start,
                end: other.end,
            },
            false => self,
        }
    }
}

/// A text short enough for a message.
pub(crate) fn shorten(text: &str) -> String {
    match text.chars().count() {
        0..=60 => text.to_owned(),
        _ => text.chars().take(57).chain("...".chars()).collect(),
    }
}
