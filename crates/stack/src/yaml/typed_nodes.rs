//! Typed access to nodes. Each reader reports what does not fit and returns what does, so that no
//! bad value hides another.

use std::collections::BTreeMap;

use crate::problem::{ProblemList, suggest_similar};
use crate::source::SourceSpan;
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

/// A text and its position.
#[derive(Debug, Clone)]
pub(crate) struct SpannedText {
    pub(crate) text: String,
    pub(crate) span: SourceSpan,
}

impl ProblemList<'_> {
    /// Entries of a map; none when the value is null or, with an error, something else.
    pub(crate) fn expect_map<'n>(&mut self, node: &'n YamlNode, what: &str) -> &'n [YamlEntry] {
        match &node.kind {
            YamlValue::Map(entries) => entries,
            _ => {
                self.report_type_mismatch(node, what, "a map (`key: value` lines)");
                &[]
            }
        }
    }

    /// Items of a list; none when the value is null or, with an error, something else.
    pub(crate) fn expect_list<'n>(&mut self, node: &'n YamlNode, what: &str) -> &'n [YamlNode] {
        match &node.kind {
            YamlValue::List(nodes) => nodes,
            _ => {
                self.report_type_mismatch(node, what, "a list (`- item` lines)");
                &[]
            }
        }
    }

    /// A text, number or boolean, as written; `None` when it is null.
    pub(crate) fn expect_text(&mut self, node: &YamlNode, what: &str) -> Option<SpannedText> {
        match &node.kind {
            YamlValue::Scalar { text, .. } if !node.is_null() => Some(SpannedText {
                text: text.clone(),
                span: node.span,
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
                span: entry.span,
            };
            let value = self.expect_text(&entry.value, &format!("{what}.{}", entry.key));
            let text = value.map_or_else(empty, |value| SpannedText {
                text: value.text,
                span: entry.span.extend_to(value.span),
            });
            texts.insert(entry.key.clone(), text);
        }
        texts
    }

    /// A boolean.
    pub(crate) fn expect_bool(&mut self, node: &YamlNode, what: &str) -> Option<bool> {
        let text = self.expect_text(node, what)?;
        match text.text.as_str() {
            // The booleans of YAML 1.1, because OpenFaaS's client accepts `yes` and `on`.
            "true" | "True" | "TRUE" | "yes" | "on" => Some(true),
            "false" | "False" | "FALSE" | "no" | "off" => Some(false),
            _ => {
                self.add_error(
                    text.span,
                    format!(
                        "{what} must be true or false, not `{}`",
                        shorten(&text.text)
                    ),
                );
                None
            }
        }
    }

    /// Warns of a key without effect. Keys that begin with `x-` belong to the author.
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
            entry.span,
            format!(
                "unknown key `{}` in {section}: it is ignored",
                shorten(&entry.key)
            ),
        );
        problem.help = suggest_similar(&entry.key, known_keys.iter().copied());
    }

    fn report_type_mismatch(&mut self, node: &YamlNode, what: &str, expected: &str) {
        let found = match &node.kind {
            // A key without a value is an empty section, which authors leave behind when they
            // remove its entries.
            _ if node.is_null() => return,
            YamlValue::Scalar { .. } => "text",
            YamlValue::List(_) => "a list",
            YamlValue::Map(_) => "a map",
        };
        self.add_error(node.span, format!("{what} must be {expected}, not {found}"));
    }
}

impl SourceSpan {
    /// Range from the start of this one to the end of another one that follows; else this one.
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
