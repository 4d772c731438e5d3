//! Reads chains as they are written.

use nearpath_types::{FunctionName, policy};

use super::topic_declaration::{TopicDeclaration, read_topic};
use crate::problem::ProblemList;
use crate::yaml::typed_nodes::{SpannedText, shorten};
use crate::yaml::{YamlEntry, YamlNode, YamlValue};

const CHAIN_KEYS: &[&str] = &[
    "edges",
    "topics",
    "delivery",
    "isolation",
    "placement",
    "pages",
];
/// Settings of all functions of a chain: key, annotation, values.
const CHAIN_SETTINGS: &[(&str, &str, &[&str])] = &[
    ("delivery", policy::DELIVERY, &["ring", "sockmap", "poll"]),
    ("isolation", policy::ISOLATION, &["shared", "strict"]),
    ("placement", policy::PLACEMENT, &["auto", "core", "spread"]),
    ("pages", policy::PAGES, &["small", "huge", "auto"]),
];

/// Caller and callee, as written.
pub(super) struct DeclaredEdge {
    pub(super) caller: SpannedText,
    pub(super) callee: SpannedText,
    /// Name of the callee for this caller, in addition to its own.
    pub(super) alias: Option<String>,
    /// Settings as in the annotation.
    pub(super) settings: String,
}

impl DeclaredEdge {
    /// `callee` may be `ALIAS=NAME SETTINGS`. Alias and settings of a caller are dropped, so that a path of
    /// arrows can pass through such a function.
    fn new(caller: SpannedText, callee: SpannedText) -> Self {
        let (caller, _) = split_settings(caller);
        let (_, caller) = split_alias(caller);
        let (callee, settings) = split_settings(callee);
        let (alias, callee) = split_alias(callee);
        Self {
            caller,
            callee,
            alias,
            settings,
        }
    }

    /// Returns the item of the caller's annotation, for a callee of this name.
    pub(super) fn annotation_item(&self, callee: &str) -> String {
        let alias = self.alias.iter().map(|alias| format!("{alias}="));
        let settings = match self.settings.is_empty() {
            true => String::new(),
            false => format!(" {}", self.settings),
        };
        format!("{}{callee}{settings}", alias.collect::<String>())
    }
}

fn split_settings(callee: SpannedText) -> (SpannedText, String) {
    // As the node reads the annotation, so that both agree on every text.
    let (name, settings) = policy::split_edge_settings(&callee.text);
    let (text, settings) = (name.trim().to_owned(), settings.trim().to_owned());
    let span = callee.span;
    (SpannedText { text, span }, settings)
}

fn split_alias(name: SpannedText) -> (Option<String>, SpannedText) {
    match name.text.split_once('=') {
        None => (None, name),
        Some((alias, rest)) => (
            Some(alias.trim().to_owned()),
            SpannedText {
                text: rest.trim().to_owned(),
                span: name.span,
            },
        ),
    }
}

/// A chain as declared.
pub(crate) struct ChainDeclaration {
    pub(super) name: SpannedText,
    pub(super) edges: Vec<DeclaredEdge>,
    pub(super) topics: Vec<TopicDeclaration>,
    /// Annotations of all its functions.
    pub(super) settings: Vec<(&'static str, String)>,
}

/// Reads one chain, in the long or the short form.
pub(crate) fn read_chain(entry: &YamlEntry, problems: &mut ProblemList<'_>) -> ChainDeclaration {
    let name = SpannedText {
        text: entry.key.clone(),
        span: entry.span,
    };
    if name.text.parse::<FunctionName>().is_err() {
        let text = format!(
            "invalid chain name `{}`: write it like a function's name",
            shorten(&name.text)
        );
        problems
            .add_error(name.span, text)
            .set_help("lower-case letters, digits and `-`, starts with a letter, at most 63");
    }
    let section = format!("chain {}", shorten(&name.text));
    let mut chain = ChainDeclaration {
        name,
        edges: Vec::new(),
        topics: Vec::new(),
        settings: Vec::new(),
    };
    // The short form: a list of arrows instead of a map of settings.
    if let YamlValue::List(_) = &entry.value.kind {
        read_arrows(&entry.value, &mut chain.edges, problems);
        return chain;
    }
    for field in problems.expect_map(&entry.value, &section) {
        match field.key.as_str() {
            "edges" => read_edges(&field.value, &mut chain.edges, problems),
            "topics" => {
                let entries = problems.expect_map(&field.value, "topics").iter();
                chain.topics = entries.map(|entry| read_topic(entry, problems)).collect();
            }
            // Settings are annotations of every function of the chain.
            key => match CHAIN_SETTINGS.iter().find(|(setting, ..)| *setting == key) {
                Some(setting) => {
                    chain
                        .settings
                        .extend(read_setting(setting, &field.value, problems))
                }
                None => problems.warn_unknown_key(field, &section, CHAIN_KEYS),
            },
        }
    }
    // Last: it compares settings with each other.
    warn_huge_pages(&chain, problems);
    chain
}

/// Warns when a strict chain asks for huge pages. In a pool that its readers cannot write, reading
/// a huge page that was never filled could kill them (ADR 16).
fn warn_huge_pages(chain: &ChainDeclaration, problems: &mut ProblemList<'_>) {
    let has_setting = |annotation, value: &str| {
        chain
            .settings
            .iter()
            .any(|(key, chosen)| *key == annotation && chosen == value)
    };
    if has_setting(policy::ISOLATION, "strict") && has_setting(policy::PAGES, "huge") {
        let text = format!(
            "chain {} is strict: its memory uses small pages",
            shorten(&chain.name.text)
        );
        problems
            .add_warning(chain.name.span, text)
            .set_help("leave `pages` out, or `isolation`");
    }
}

fn read_setting(
    (key, annotation, values): &(&str, &'static str, &[&str]),
    node: &YamlNode,
    problems: &mut ProblemList<'_>,
) -> Option<(&'static str, String)> {
    let text = problems.expect_text(node, key)?;
    if values.contains(&text.text.as_str()) {
        return Some((annotation, text.text));
    }
    let problem = problems.add_error(
        text.span,
        format!("unknown {key} `{}`", shorten(&text.text)),
    );
    problem.set_help(format!("one of {}", values.join(", ")));
    None
}

fn read_edges(node: &YamlNode, edges: &mut Vec<DeclaredEdge>, problems: &mut ProblemList<'_>) {
    if let YamlValue::List(_) = node.kind {
        return read_arrows(node, edges, problems);
    }
    for entry in problems.expect_map(node, "edges") {
        let caller = SpannedText {
            text: entry.key.clone(),
            span: entry.span,
        };
        let section = format!("edges.{}", shorten(&entry.key));
        let callees = problems.expect_list(&entry.value, &section).iter();
        let callees: Vec<_> = callees
            .filter_map(|callee| read_callee(callee, &section, problems))
            .collect();
        edges.extend(
            callees
                .into_iter()
                .map(|callee| DeclaredEdge::new(caller.clone(), callee)),
        );
    }
}

/// Reads a callee: a text, or a map of `to` and settings. Returns the form of the text.
fn read_callee(
    node: &YamlNode,
    section: &str,
    problems: &mut ProblemList<'_>,
) -> Option<SpannedText> {
    let item = format!("an item of {section}");
    let YamlValue::Map(entries) = &node.kind else {
        return problems.expect_text(node, &item);
    };
    let (mut to, mut settings) = (None, String::new());
    for entry in entries {
        match entry.key.as_str() {
            "to" => to = problems.expect_text(&entry.value, "to"),
            key if key.starts_with("x-") => {}
            key => {
                let value = problems.expect_text(&entry.value, key)?;
                settings.push_str(&format!(" {key}={}", value.text));
            }
        }
    }
    let Some(SpannedText { text, span }) = to else {
        problems
            .add_error(node.span, format!("{item} has no `to`"))
            .set_help("add `to: FUNCTION`");
        return None;
    };
    let text = text + &settings;
    Some(SpannedText { text, span })
}

/// Reads lines of `a -> b -> c`.
fn read_arrows(node: &YamlNode, edges: &mut Vec<DeclaredEdge>, problems: &mut ProblemList<'_>) {
    for text in problems.expect_text_list(node, "edges") {
        let names: Vec<_> = text.text.split("->").map(str::trim).collect();
        if names.len() < 2 || names.iter().any(|name| name.is_empty()) {
            problems
                .add_error(
                    text.span,
                    format!("`{}` is not an edge", shorten(&text.text)),
                )
                .set_help("write `caller -> callee`");
            continue;
        }
        let endpoint = |name: &str| SpannedText {
            text: name.to_owned(),
            span: text.span,
        };
        edges.extend(
            names
                .windows(2)
                .map(|pair| DeclaredEdge::new(endpoint(pair[0]), endpoint(pair[1]))),
        );
    }
}
