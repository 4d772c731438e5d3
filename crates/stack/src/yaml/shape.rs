//! Reading nodes as what they should be. Each reader reports what does not fit and gives back what does, so that one bad
//! value hides no other.

use std::collections::BTreeMap;

use crate::problem::{Problems, did_you_mean};
use crate::text::Place;
use crate::yaml::{Entry, Kind, Node};

/// A text and where it is written.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    pub(crate) text: String,
    pub(crate) place: Place,
}

impl Problems<'_> {
    /// The entries of a map; nothing when the value is null or, with an error, something else.
    pub(crate) fn map<'n>(&mut self, node: &'n Node, what: &str) -> &'n [Entry] {
        match &node.kind {
            Kind::Map(entries) => entries,
            _ => {
                self.unexpected(node, what, "a map (`key: value` lines)");
                &[]
            }
        }
    }

    /// The items of a list; nothing when the value is null or, with an error, something else.
    pub(crate) fn list<'n>(&mut self, node: &'n Node, what: &str) -> &'n [Node] {
        match &node.kind {
            Kind::List(nodes) => nodes,
            _ => {
                self.unexpected(node, what, "a list (`- item` lines)");
                &[]
            }
        }
    }

    /// A text, number or boolean, as written; nothing when it is null.
    pub(crate) fn text(&mut self, node: &Node, what: &str) -> Option<Text> {
        match &node.kind {
            Kind::Scalar { text, .. } if !node.is_null() => Some(Text { text: text.clone(), place: node.place }),
            _ => {
                self.unexpected(node, what, "text");
                None
            }
        }
    }

    /// A list of texts.
    pub(crate) fn texts(&mut self, node: &Node, what: &str) -> Vec<Text> {
        let items = self.list(node, what).iter();
        items.filter_map(|item| self.text(item, &format!("an item of {what}"))).collect()
    }

    /// A map of texts; a null value is an empty text.
    pub(crate) fn strings(&mut self, node: &Node, what: &str) -> BTreeMap<String, Text> {
        let mut out = BTreeMap::new();
        for entry in self.map(node, what) {
            let empty = || Text { text: String::new(), place: entry.place };
            let value = self.text(&entry.value, &format!("{what}.{}", entry.key));
            let text = value.map_or_else(empty, |value| Text { text: value.text, place: entry.place.to(value.place) });
            out.insert(entry.key.clone(), text);
        }
        out
    }

    /// A boolean.
    pub(crate) fn flag(&mut self, node: &Node, what: &str) -> Option<bool> {
        let text = self.text(node, what)?;
        match text.text.as_str() {
            "true" | "True" | "TRUE" | "yes" | "on" => Some(true),
            "false" | "False" | "FALSE" | "no" | "off" => Some(false),
            _ => {
                self.error(text.place, format!("{what} is true or false, not `{}`", brief(&text.text)));
                None
            }
        }
    }

    /// Warns of a key that nothing reads. Keys that begin with `x-` are the author's own.
    pub(crate) fn unknown(&mut self, entry: &Entry, home: &str, known: &[&str]) {
        if entry.key.starts_with("x-") {
            return;
        }
        let problem = self.warn(entry.place, format!("unknown key `{}` in {home}: it is ignored", brief(&entry.key)));
        problem.help = did_you_mean(&entry.key, known.iter().copied());
    }

    fn unexpected(&mut self, node: &Node, what: &str, wanted: &str) {
        let found = match &node.kind {
            _ if node.is_null() => return,
            Kind::Scalar { .. } => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        };
        self.error(node.place, format!("{what} should be {wanted}, and is {found}"));
    }
}

impl Place {
    /// From the start of this place to the end of another one, when that follows; else the place itself.
    fn to(self, other: Self) -> Self {
        match other.start >= self.start {
            true => Self { start: self.start, end: other.end },
            false => self,
        }
    }
}

/// A text short enough for a message.
pub(crate) fn brief(text: &str) -> String {
    match text.chars().count() {
        0..=60 => text.to_owned(),
        _ => text.chars().take(57).chain("...".chars()).collect(),
    }
}
