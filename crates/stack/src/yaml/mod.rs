//! YAML text into a small tree in which every key and value knows its place.
//!
//! The parser's events are folded into nodes here, and not by a ready-made loader, to keep three promises: all duplicate
//! keys are reported and not only the first; scalars keep the text they were written with (`3.10` stays `3.10`); and size
//! is bounded: depth, and what aliases expand to. Merge keys (`<<: *defaults`) work as in YAML 1.1.

pub(crate) mod typed_nodes;

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::problem::ProblemList;
use crate::source::{SourceSpan, SourceText};

/// Lists and maps may be nested this deep.
const MAX_NESTING_DEPTH: usize = 32;
/// What all aliases together may expand to, in bytes of memory, roughly.
const MAX_EXPANSION_BYTES: usize = 8 << 20;

/// A value and where it is written.
#[derive(Debug, Clone)]
pub(crate) struct YamlNode {
    pub(crate) place: SourceSpan,
    pub(crate) kind: YamlValue,
}

#[derive(Debug, Clone)]
pub(crate) enum YamlValue {
    /// Text as written; a plain one may mean null, true or a number.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<YamlNode>),
    Map(Vec<YamlEntry>),
}

/// One `key: value` of a map.
#[derive(Debug, Clone)]
pub(crate) struct YamlEntry {
    pub(crate) key: String,
    pub(crate) place: SourceSpan,
    pub(crate) value: YamlNode,
}

impl YamlNode {
    /// Whether it is nothing: an empty value, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, YamlValue::Scalar { text, is_plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Its rough size in memory; the depth is bounded, so recursion is too.
    fn memory_bytes(&self) -> usize {
        64 + match &self.kind {
            YamlValue::Scalar { text, .. } => text.len(),
            YamlValue::List(nodes) => nodes.iter().map(Self::memory_bytes).sum(),
            YamlValue::Map(entries) => entries
                .iter()
                .map(|entry| entry.key.len() + 64 + entry.value.memory_bytes())
                .sum(),
        }
    }
}

/// Parses the one document of a source. `NoConnection` when it cannot be read on; the reason is among the problems.
pub(crate) fn parse_yaml(source: &SourceText, problems: &mut ProblemList<'_>) -> Option<YamlNode> {
    let mut builder = TreeBuilder {
        source,
        problems,
        open_collections: Vec::new(),
        anchors: HashMap::new(),
        expanded_bytes: 0,
        root: None,
    };
    let mut parser = Parser::new_from_str(source.substituted_text());
    let mut documents = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let place = source.span_of(error.marker().index(), error.marker().index() + 1);
                builder
                    .problems
                    .add_error(place, format!("not valid YAML: {}", error.info()));
                return None;
            }
        };
        let place = builder.place(span);
        if matches!(event, Event::DocumentStart(_)) {
            documents += 1;
            if documents > 1 {
                builder.problems.add_error(
                    place,
                    "a stack file is one YAML document; a second one starts here",
                );
                return None;
            }
            continue;
        }
        builder.handle_event(event, place)?;
    }
    builder.root
}

/// A list or map that is not yet closed.
enum OpenCollection {
    List {
        anchor: usize,
        place: SourceSpan,
        nodes: Vec<YamlNode>,
    },
    Map {
        anchor: usize,
        place: SourceSpan,
        entries: Vec<YamlEntry>,
        key: Option<(String, SourceSpan)>,
    },
}

struct TreeBuilder<'a, 'p> {
    source: &'a SourceText,
    problems: &'a mut ProblemList<'p>,
    open_collections: Vec<OpenCollection>,
    anchors: HashMap<usize, YamlNode>,
    expanded_bytes: usize,
    root: Option<YamlNode>,
}

impl TreeBuilder<'_, '_> {
    fn place(&self, span: Span) -> SourceSpan {
        self.source.span_of(span.start.index(), span.end.index())
    }

    fn handle_event(&mut self, event: Event<'_>, place: SourceSpan) -> Option<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain =
                    style == ScalarStyle::Plain && tag.is_none_or(|tag| tag.suffix != "str");
                self.add_node(
                    YamlNode {
                        place,
                        kind: YamlValue::Scalar {
                            text: text.into_owned(),
                            is_plain: plain,
                        },
                    },
                    anchor,
                )
            }
            Event::SequenceStart(anchor, _) => self.open_collection(
                OpenCollection::List {
                    anchor,
                    place,
                    nodes: Vec::new(),
                },
                place,
            ),
            Event::MappingStart(anchor, _) => self.open_collection(
                OpenCollection::Map {
                    anchor,
                    place,
                    entries: Vec::new(),
                    key: None,
                },
                place,
            ),
            Event::SequenceEnd | Event::MappingEnd => self.close_collection(place),
            Event::Alias(anchor) => self.resolve_alias(anchor, place),
            _ => Some(()),
        }
    }

    fn open_collection(&mut self, frame: OpenCollection, place: SourceSpan) -> Option<()> {
        if let Some(OpenCollection::Map { key: None, .. }) = self.open_collections.last() {
            self.problems
                .add_error(place, "a key must be text, not a list or a map");
            return None;
        }
        if self.open_collections.len() >= MAX_NESTING_DEPTH {
            self.problems.add_error(
                place,
                format!("nested more than {MAX_NESTING_DEPTH} levels deep"),
            );
            return None;
        }
        self.open_collections.push(frame);
        Some(())
    }

    fn close_collection(&mut self, end: SourceSpan) -> Option<()> {
        let span_until = |start: SourceSpan| SourceSpan {
            start: start.start,
            end: end.start.max(start.start),
        };
        match self.open_collections.pop()? {
            OpenCollection::List {
                anchor,
                place,
                nodes,
            } => self.add_node(
                YamlNode {
                    place: span_until(place),
                    kind: YamlValue::List(nodes),
                },
                anchor,
            ),
            OpenCollection::Map {
                anchor,
                place,
                entries,
                ..
            } => {
                let entries = self.remove_duplicates(entries);
                let entries = self.expand_merge_keys(entries);
                self.add_node(
                    YamlNode {
                        place: span_until(place),
                        kind: YamlValue::Map(entries),
                    },
                    anchor,
                )
            }
        }
    }

    fn resolve_alias(&mut self, anchor: usize, place: SourceSpan) -> Option<()> {
        let Some(node) = self.anchors.get(&anchor) else {
            self.problems
                .add_error(place, "this alias refers to the value that it is part of");
            return None;
        };
        let node = YamlNode {
            place,
            kind: node.kind.clone(),
        };
        self.count_expansion(&node)?;
        self.add_node(node, 0)
    }

    /// Counts a copy of `node` against what anchors and aliases may hold.
    fn count_expansion(&mut self, node: &YamlNode) -> Option<()> {
        self.expanded_bytes += node.memory_bytes();
        if self.expanded_bytes > MAX_EXPANSION_BYTES {
            self.problems.add_error(
                node.place,
                format!(
                    "aliases expand to more than {} MiB",
                    MAX_EXPANSION_BYTES >> 20
                ),
            );
            return None;
        }
        Some(())
    }

    fn add_node(&mut self, node: YamlNode, anchor: usize) -> Option<()> {
        if anchor > 0 {
            self.count_expansion(&node)?;
            self.anchors.insert(anchor, node.clone());
        }
        match self.open_collections.last_mut() {
            None => self.root = Some(node),
            Some(OpenCollection::List { nodes, .. }) => nodes.push(node),
            Some(OpenCollection::Map { entries, key, .. }) => match (key.take(), node.kind) {
                (Some((key, place)), kind) => {
                    entries.push(YamlEntry {
                        key,
                        place,
                        value: YamlNode {
                            place: node.place,
                            kind,
                        },
                    });
                }
                (None, YamlValue::Scalar { text, .. }) => *key = Some((text, node.place)),
                (None, _) => {
                    self.problems
                        .add_error(node.place, "a key must be text, not a list or a map");
                    return None;
                }
            },
        }
        Some(())
    }

    /// Without the later ones of equal keys, which are errors.
    fn remove_duplicates(&mut self, entries: Vec<YamlEntry>) -> Vec<YamlEntry> {
        let mut first: HashMap<String, SourceSpan> = HashMap::new();
        let (source, problems) = (self.source, &mut *self.problems);
        let mut keep = |entry: &YamlEntry| match first.get(&entry.key) {
            None => first.insert(entry.key.clone(), entry.place).is_none(),
            Some(place) => {
                let line = source.line_number(*place);
                problems.add_error(
                    entry.place,
                    format!(
                        "`{}` is written twice; the first is on line {line}",
                        entry.key
                    ),
                );
                false
            }
        };
        entries.into_iter().filter(|entry| keep(entry)).collect()
    }

    /// With `<<: map` or `<<: [map, …]` replaced by the entries of those maps that are not written here.
    fn expand_merge_keys(&mut self, mut entries: Vec<YamlEntry>) -> Vec<YamlEntry> {
        let Some(at) = entries.iter().position(|entry| entry.key == "<<") else {
            return entries;
        };
        let merge = entries.remove(at);
        let sources = match merge.value.kind {
            YamlValue::List(nodes) => nodes,
            kind => vec![YamlNode {
                place: merge.value.place,
                kind,
            }],
        };
        let mut known: HashSet<String> = entries.iter().map(|entry| entry.key.clone()).collect();
        for source in sources {
            match source.kind {
                YamlValue::Map(more) => entries.extend(
                    more.into_iter()
                        .filter(|entry| known.insert(entry.key.clone())),
                ),
                _ => {
                    self.problems
                        .add_error(source.place, "`<<` takes a map, or a list of maps");
                }
            }
        }
        entries
    }
}
