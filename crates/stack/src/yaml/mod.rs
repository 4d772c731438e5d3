//! YAML text as a small tree in which every key and value has its position.
//!
//! Nodes are built from the parser's events instead of by a ready-made loader, for three reasons.
//! All duplicate keys are reported, not only the first. Scalars keep their original text (`3.10`
//! stays `3.10`). Depth and the expansion of aliases are bounded. Merge keys (`<<: *defaults`) work
//! as in YAML 1.1.

pub(crate) mod typed_nodes;

use std::collections::{HashMap, HashSet};

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use crate::problem::ProblemList;
use crate::source::{SourceSpan, SourceText};

/// Levels of nested lists and maps.
const MAX_NESTING_DEPTH: usize = 32;
/// Approximate memory that all aliases together may expand to, in bytes.
const MAX_EXPANSION_BYTES: usize = 8 << 20;

/// A value and its position.
#[derive(Debug, Clone)]
pub(crate) struct YamlNode {
    pub(crate) span: SourceSpan,
    pub(crate) kind: YamlValue,
}

#[derive(Debug, Clone)]
pub(crate) enum YamlValue {
    /// Original text. A plain scalar may mean null, true or a number.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<YamlNode>),
    Map(Vec<YamlEntry>),
}

/// `key: value` of a map.
#[derive(Debug, Clone)]
pub(crate) struct YamlEntry {
    pub(crate) key: String,
    pub(crate) span: SourceSpan,
    pub(crate) value: YamlNode,
}

impl YamlNode {
    /// True for an empty value, `~` or `null`.
    pub(crate) fn is_null(&self) -> bool {
        matches!(&self.kind, YamlValue::Scalar { text, is_plain: true } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Approximate size in memory. The depth is bounded, and so is the recursion.
    fn memory_bytes(&self) -> usize {
        // 64 bytes stand for the node itself and its allocation; an estimate is enough for a limit.
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

/// Parses the only document of a source. `None` when parsing cannot go on; the problems contain the
/// reason.
pub(crate) fn parse_yaml(source: &SourceText, problems: &mut ProblemList<'_>) -> Option<YamlNode> {
    let mut builder = TreeBuilder {
        source,
        problems,
        open_collections: Vec::new(),
        anchors: HashMap::new(),
        expanded_bytes: 0,
        root: None,
    };
    // Events carry character offsets, which the source maps back to the original text.
    let mut parser = Parser::new_from_str(source.substituted_text());
    let mut documents = 0;
    while let Some(event) = parser.next_event() {
        let (event, span) = match event {
            Ok(event) => event,
            Err(error) => {
                let span = source.span_of(error.marker().index(), error.marker().index() + 1);
                builder
                    .problems
                    .add_error(span, format!("not valid YAML: {}", error.info()));
                return None;
            }
        };
        let span = builder.span(span);
        if matches!(event, Event::DocumentStart(_)) {
            // Counted here: the parser accepts a stream of documents, and only the first would be
            // deployed.
            documents += 1;
            if documents > 1 {
                builder.problems.add_error(
                    span,
                    "a stack file is one YAML document; a second one starts here",
                );
                return None;
            }
            continue;
        }
        builder.handle_event(event, span)?;
    }
    builder.root
}

/// A list or map that is not closed yet.
enum OpenCollection {
    List {
        anchor: usize,
        span: SourceSpan,
        nodes: Vec<YamlNode>,
    },
    Map {
        anchor: usize,
        span: SourceSpan,
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
    fn span(&self, span: Span) -> SourceSpan {
        self.source.span_of(span.start.index(), span.end.index())
    }

    fn handle_event(&mut self, event: Event<'_>, span: SourceSpan) -> Option<()> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                // `!!str` and quotes make a text of what would else be null or a number.
                let plain =
                    style == ScalarStyle::Plain && tag.is_none_or(|tag| tag.suffix != "str");
                self.add_node(
                    YamlNode {
                        span,
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
                    span,
                    nodes: Vec::new(),
                },
                span,
            ),
            Event::MappingStart(anchor, _) => self.open_collection(
                OpenCollection::Map {
                    anchor,
                    span,
                    entries: Vec::new(),
                    key: None,
                },
                span,
            ),
            Event::SequenceEnd | Event::MappingEnd => self.close_collection(span),
            Event::Alias(anchor) => self.resolve_alias(anchor, span),
            _ => Some(()),
        }
    }

    fn open_collection(&mut self, frame: OpenCollection, span: SourceSpan) -> Option<()> {
        // YAML allows any node as a key, but stack files need text.
        if let Some(OpenCollection::Map { key: None, .. }) = self.open_collections.last() {
            self.problems
                .add_error(span, "a key must be text, not a list or a map");
            return None;
        }
        if self.open_collections.len() >= MAX_NESTING_DEPTH {
            self.problems.add_error(
                span,
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
                span,
                nodes,
            } => self.add_node(
                YamlNode {
                    span: span_until(span),
                    kind: YamlValue::List(nodes),
                },
                anchor,
            ),
            OpenCollection::Map {
                anchor,
                span,
                entries,
                ..
            } => {
                // Before the merge keys: an entry may override a merged one, but not another entry.
                let entries = self.remove_duplicates(entries);
                let entries = self.expand_merge_keys(entries);
                self.add_node(
                    YamlNode {
                        span: span_until(span),
                        kind: YamlValue::Map(entries),
                    },
                    anchor,
                )
            }
        }
    }

    fn resolve_alias(&mut self, anchor: usize, span: SourceSpan) -> Option<()> {
        let Some(node) = self.anchors.get(&anchor) else {
            self.problems
                .add_error(span, "this alias refers to the value that it is part of");
            return None;
        };
        let node = YamlNode {
            span,
            kind: node.kind.clone(),
        };
        // Counted before the copy is used: nested aliases double the size with every level.
        self.count_expansion(&node)?;
        self.add_node(node, 0)
    }

    /// Counts a copy of `node` against the limit for anchors and aliases.
    fn count_expansion(&mut self, node: &YamlNode) -> Option<()> {
        self.expanded_bytes += node.memory_bytes();
        if self.expanded_bytes > MAX_EXPANSION_BYTES {
            self.problems.add_error(
                node.span,
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
            // A copy per anchor: aliases may be used after the anchored node has been moved into
            // its parent.
            self.anchors.insert(anchor, node.clone());
        }
        match self.open_collections.last_mut() {
            None => self.root = Some(node),
            Some(OpenCollection::List { nodes, .. }) => nodes.push(node),
            Some(OpenCollection::Map { entries, key, .. }) => match (key.take(), node.kind) {
                (Some((key, span)), kind) => {
                    entries.push(YamlEntry {
                        key,
                        span,
                        value: YamlNode {
                            span: node.span,
                            kind,
                        },
                    });
                }
                (None, YamlValue::Scalar { text, .. }) => *key = Some((text, node.span)),
                (None, _) => {
                    self.problems
                        .add_error(node.span, "a key must be text, not a list or a map");
                    return None;
                }
            },
        }
        Some(())
    }

    /// Removes later entries with an equal key, and reports them.
    fn remove_duplicates(&mut self, entries: Vec<YamlEntry>) -> Vec<YamlEntry> {
        let mut first: HashMap<String, SourceSpan> = HashMap::new();
        let (source, problems) = (self.source, &mut *self.problems);
        let mut keep = |entry: &YamlEntry| match first.get(&entry.key) {
            None => first.insert(entry.key.clone(), entry.span).is_none(),
            Some(span) => {
                let line = source.line_number(*span);
                problems.add_error(
                    entry.span,
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

    /// Replaces `<<: map` or `<<: [map, …]` by the entries of those maps whose keys are not written
    /// here.
    fn expand_merge_keys(&mut self, mut entries: Vec<YamlEntry>) -> Vec<YamlEntry> {
        let Some(at) = entries.iter().position(|entry| entry.key == "<<") else {
            return entries;
        };
        let merge = entries.remove(at);
        let sources = match merge.value.kind {
            YamlValue::List(nodes) => nodes,
            kind => vec![YamlNode {
                span: merge.value.span,
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
                        .add_error(source.span, "`<<` takes a map, or a list of maps");
                }
            }
        }
        entries
    }
}
