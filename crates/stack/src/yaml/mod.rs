//! YAML text into a small tree in which every key and value knows its place.
//!
//! The parser's events are folded into nodes here, and not by a ready-made loader, to keep three promises: all duplicate
//! keys are reported and not only the first; scalars keep the text they were written with (`3.10` stays `3.10`); and size
//! is bounded: depth, and what aliases expand to. Merge keys (`<<: *defaults`) work as in YAML 1.1.

pub(crate) mod shape;

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::problem::Problems;
use crate::text::{Place, Source};

/// Lists and maps may be nested this deep.
const MAX_DEPTH: usize = 32;
/// What all aliases together may expand to, in bytes of memory, roughly.
const MAX_EXPANSION: usize = 8 << 20;

/// A value and where it is written.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) place: Place,
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone)]
pub(crate) enum Kind {
    /// Text as written; a plain one may mean null, true or a number.
    Scalar {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One `key: value` of a map.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) place: Place,
    pub(crate) value: Node,
}

impl Node {
    /// Whether it is nothing: an empty value, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, Kind::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Its rough size in memory; the depth is bounded, so recursion is too.
    fn weight(&self) -> usize {
        64 + match &self.kind {
            Kind::Scalar { text, .. } => text.len(),
            Kind::List(nodes) => nodes.iter().map(Self::weight).sum(),
            Kind::Map(entries) => entries.iter().map(|entry| entry.key.len() + 64 + entry.value.weight()).sum(),
        }
    }
}

/// Parses the one document of a source. `None` when it cannot be read on; the reason is among the problems.
pub(crate) fn parse(source: &Source, problems: &mut Problems<'_>) -> Option<Node> {
    let mut builder =
        Builder { source, problems, frames: Vec::new(), anchors: HashMap::new(), expansion: 0, root: None };
    let mut parser = Parser::new_from_str(source.read());
    let mut documents = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let place = source.place(error.marker().index(), error.marker().index() + 1);
                builder.problems.error(place, format!("not valid YAML: {}", error.info()));
                return None;
            }
        };
        let place = builder.place(span);
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                builder.problems.error(place, "a stack file is one YAML document; a second one starts here");
                return None;
            }
            continue;
        }
        builder.take(event, place)?;
    }
    builder.root
}

/// A list or map that is not yet closed.
enum Frame {
    List { anchor: usize, place: Place, nodes: Vec<Node> },
    Map { anchor: usize, place: Place, entries: Vec<Entry>, key: Option<(String, Place)> },
}

struct Builder<'a, 'p> {
    source: &'a Source,
    problems: &'a mut Problems<'p>,
    frames: Vec<Frame>,
    anchors: HashMap<usize, Node>,
    expansion: usize,
    root: Option<Node>,
}

impl Builder<'_, '_> {
    fn place(&self, span: Span) -> Place {
        self.source.place(span.start.index(), span.end.index())
    }

    fn take(&mut self, event: Event<'_>, place: Place) -> Option<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && tag.is_none_or(|tag| tag.suffix != "str");
                self.add(Node { place, kind: Kind::Scalar { text: text.into_owned(), plain } }, anchor)
            }
            Event::SequenceStart(anchor, _) => self.open(Frame::List { anchor, place, nodes: Vec::new() }, place),
            Event::MappingStart(anchor, _) => {
                self.open(Frame::Map { anchor, place, entries: Vec::new(), key: None }, place)
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(place),
            Event::Alias(anchor) => self.alias(anchor, place),
            _ => Some(()),
        }
    }

    fn open(&mut self, frame: Frame, place: Place) -> Option<()> {
        if let Some(Frame::Map { key: None, .. }) = self.frames.last() {
            self.problems.error(place, "a key must be text, not a list or a map");
            return None;
        }
        if self.frames.len() >= MAX_DEPTH {
            self.problems.error(place, format!("nested more than {MAX_DEPTH} levels deep"));
            return None;
        }
        self.frames.push(frame);
        Some(())
    }

    fn close(&mut self, end: Place) -> Option<()> {
        let until = |start: Place| Place { start: start.start, end: end.start.max(start.start) };
        match self.frames.pop()? {
            Frame::List { anchor, place, nodes } => {
                self.add(Node { place: until(place), kind: Kind::List(nodes) }, anchor)
            }
            Frame::Map { anchor, place, entries, .. } => {
                let entries = self.unique(entries);
                let entries = self.merged(entries);
                self.add(Node { place: until(place), kind: Kind::Map(entries) }, anchor)
            }
        }
    }

    fn alias(&mut self, anchor: usize, place: Place) -> Option<()> {
        let Some(node) = self.anchors.get(&anchor) else {
            self.problems.error(place, "this alias refers to the value that it is part of");
            return None;
        };
        let node = Node { place, kind: node.kind.clone() };
        self.account(&node)?;
        self.add(node, 0)
    }

    /// Counts a copy of `node` against what anchors and aliases may hold.
    fn account(&mut self, node: &Node) -> Option<()> {
        self.expansion += node.weight();
        if self.expansion > MAX_EXPANSION {
            self.problems.error(node.place, format!("aliases expand to more than {} MiB", MAX_EXPANSION >> 20));
            return None;
        }
        Some(())
    }

    fn add(&mut self, node: Node, anchor: usize) -> Option<()> {
        if anchor > 0 {
            self.account(&node)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.frames.last_mut() {
            None => self.root = Some(node),
            Some(Frame::List { nodes, .. }) => nodes.push(node),
            Some(Frame::Map { entries, key, .. }) => match (key.take(), node.kind) {
                (Some((key, place)), kind) => {
                    entries.push(Entry { key, place, value: Node { place: node.place, kind } });
                }
                (None, Kind::Scalar { text, .. }) => *key = Some((text, node.place)),
                (None, _) => {
                    self.problems.error(node.place, "a key must be text, not a list or a map");
                    return None;
                }
            },
        }
        Some(())
    }

    /// Without the later ones of equal keys, which are errors.
    fn unique(&mut self, entries: Vec<Entry>) -> Vec<Entry> {
        let mut first: HashMap<String, Place> = HashMap::new();
        let (source, problems) = (self.source, &mut *self.problems);
        let mut keep = |entry: &Entry| match first.get(&entry.key) {
            None => first.insert(entry.key.clone(), entry.place).is_none(),
            Some(place) => {
                let line = source.line(*place);
                problems.error(entry.place, format!("`{}` is written twice; the first is on line {line}", entry.key));
                false
            }
        };
        entries.into_iter().filter(|entry| keep(entry)).collect()
    }

    /// With `<<: map` or `<<: [map, …]` replaced by the entries of those maps that are not written here.
    fn merged(&mut self, mut entries: Vec<Entry>) -> Vec<Entry> {
        let Some(at) = entries.iter().position(|entry| entry.key == "<<") else { return entries };
        let merge = entries.remove(at);
        let sources = match merge.value.kind {
            Kind::List(nodes) => nodes,
            kind => vec![Node { place: merge.value.place, kind }],
        };
        let mut known: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        for source in sources {
            match source.kind {
                Kind::Map(more) => entries.extend(more.into_iter().filter(|entry| known.insert(entry.key.clone()))),
                _ => {
                    self.problems.error(source.place, "`<<` takes a map, or a list of maps");
                }
            }
        }
        entries
    }
}
