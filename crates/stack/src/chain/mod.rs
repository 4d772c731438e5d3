//! `chains:`: the edges of applications, checked against the functions of the file.
//!
//! ```yaml
//! chains:
//! shop:
//! edges: { frontend: [cart, ads, rates=currency], cart: [{ to: store, balance: connection }] }
//! topics: { order/placed: { from: [cart], to: [mail, audit] } }
//! delivery: ring
//! isolation: shared
//! placement: auto
//! pages: small
//! news: ["front -> feed -> store", "front -> ads"]
//! ```
//!
//! A chain is a directed acyclic graph; only edges from a function to itself are allowed in
//! addition. A function belongs to the chain in which it calls others. A function that only answers
//! belongs to the chain that calls it, if there is exactly one.

mod cycle;
mod topic;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearpath_types::{FunctionId, FunctionName, policy};

use crate::function::FunctionDraft;
use crate::problem::{ProblemList, suggest_similar};
use crate::source::SourceSpan;
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
struct DeclaredEdge {
    caller: SpannedText,
    callee: SpannedText,
    /// Name of the callee for this caller, in addition to its own.
    alias: Option<String>,
    /// Settings as in the annotation.
    settings: String,
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
    fn annotation_item(&self, callee: &str) -> String {
        let alias = self.alias.iter().map(|alias| format!("{alias}="));
        let settings = match self.settings.is_empty() {
            true => String::new(),
            false => format!(" {}", self.settings),
        };
        format!("{}{callee}{settings}", alias.collect::<String>())
    }
}

fn split_settings(callee: SpannedText) -> (SpannedText, String) {
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
    name: SpannedText,
    edges: Vec<DeclaredEdge>,
    topics: Vec<topic::TopicDeclaration>,
    /// Annotations of all its functions.
    settings: Vec<(&'static str, String)>,
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
                chain.topics = entries
                    .map(|entry| topic::read_topic(entry, problems))
                    .collect();
            }
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

/// Functions of the file, by the names that edges use.
struct FunctionNames<'a> {
    by_id: HashMap<FunctionId, usize>,
    by_name: HashMap<String, usize>,
    /// Names of functions that could not be read and are reported already.
    broken: &'a BTreeSet<String>,
}

/// Function that a name refers to.
enum ResolvedName {
    Local(usize),
    /// Function of another namespace that is not in this file.
    External(FunctionId),
    Broken,
}

impl<'a> FunctionNames<'a> {
    fn from_drafts(drafts: &[FunctionDraft], broken: &'a BTreeSet<String>) -> Self {
        let ids = drafts.iter().map(|draft| draft.spec.id()).enumerate();
        let by_id: HashMap<_, _> = ids.map(|(index, id)| (id, index)).collect();
        let by_name = by_id
            .iter()
            .map(|(id, index)| (id.name.to_string(), *index))
            .collect();
        Self {
            by_id,
            by_name,
            broken,
        }
    }

    fn resolve_name(&self, name: &SpannedText, problems: &mut ProblemList<'_>) -> ResolvedName {
        if self.broken.contains(&name.text) {
            return ResolvedName::Broken;
        }
        let id = name.text.parse::<FunctionId>();
        // Only a name with a dot names a namespace: a bare name always means a function of this
        // file.
        if let (true, Ok(id)) = (name.text.contains('.'), &id) {
            return self
                .by_id
                .get(id)
                .map_or(ResolvedName::External(id.clone()), |index| {
                    ResolvedName::Local(*index)
                });
        }
        if let Some(index) = self.by_name.get(&name.text) {
            return ResolvedName::Local(*index);
        }
        let why = if id.is_ok() {
            "is not below `functions:`"
        } else {
            "is not a function's name"
        };
        let problem = problems.add_error(
            name.span,
            format!("function `{}` {why}", shorten(&name.text)),
        );
        // Functions of the file only: names of other namespaces are not known here.
        problem.help = suggest_similar(&name.text, self.by_name.keys().map(String::as_str));
        ResolvedName::Broken
    }
}

impl FunctionNames<'_> {
    /// Reports an alias that equals a function's name: the name must always mean that function.
    fn check_alias(&self, alias: Option<&str>, span: SourceSpan, problems: &mut ProblemList<'_>) {
        let Some(alias) =
            alias.filter(|alias| self.by_name.contains_key(*alias) || self.broken.contains(*alias))
        else {
            return;
        };
        problems
            .add_error(
                span,
                format!("alias `{}` is a function's name", shorten(alias)),
            )
            .set_help("choose another alias");
    }
}

/// Checks all chains and writes their edges into the annotations of the callers.
pub(crate) fn apply_chains(
    chains: &[ChainDeclaration],
    drafts: &mut [FunctionDraft],
    broken: &BTreeSet<String>,
    problems: &mut ProblemList<'_>,
) {
    let names = FunctionNames::from_drafts(drafts, broken);
    let mut membership = ChainMembership::default();
    for chain in chains {
        let edges = resolve_edges(chain, &names, problems);
        check_acyclic(chain, &edges, drafts, problems);
        for ResolvedEdge {
            caller,
            callee,
            span,
            declared,
        } in &edges
        {
            membership.add_caller(*caller, &chain.name, *span, drafts, problems);
            let name = match callee {
                ResolvedCallee::Local(callee) => {
                    membership.add_callee(*callee, &chain.name.text);
                    relative_name(&drafts[*callee].spec.id(), &drafts[*caller])
                }
                ResolvedCallee::External(id) => id.to_string(),
            };
            let item = declared.annotation_item(&name);
            drafts[*caller].add_list_item(policy::CALLS, &item, *span);
        }
        topic::apply_topics(chain, &names, &mut membership, drafts, problems);
    }
    // Last: the chain of a function that only answers is known when all chains are read.
    membership.write_annotations(chains, drafts);
}

/// An edge whose ends are known.
struct ResolvedEdge<'a> {
    caller: usize,
    callee: ResolvedCallee,
    span: SourceSpan,
    declared: &'a DeclaredEdge,
}

enum ResolvedCallee {
    Local(usize),
    External(FunctionId),
}

/// Resolves the edges of a chain. Each unknown caller is reported once.
fn resolve_edges<'c>(
    chain: &'c ChainDeclaration,
    names: &FunctionNames<'_>,
    problems: &mut ProblemList<'_>,
) -> Vec<ResolvedEdge<'c>> {
    let (mut reported_callers, mut edges) = (BTreeSet::new(), Vec::new());
    for declared in &chain.edges {
        let (caller, callee) = (&declared.caller, &declared.callee);
        let (span, callee_name) = (callee.span, names.resolve_name(callee, problems));
        names.check_alias(declared.alias.as_deref(), span, problems);
        if let Err(error) = policy::parse_edge_settings(&declared.settings) {
            problems.add_error(
                span,
                format!("edge to `{}`: {error}", shorten(&callee.text)),
            );
            continue;
        }
        // A map entry with an unknown caller and ten callees is one mistake.
        if reported_callers.contains(&caller.text) {
            continue;
        }
        let callee = match callee_name {
            ResolvedName::Local(callee) => Some(ResolvedCallee::Local(callee)),
            ResolvedName::External(id) => Some(ResolvedCallee::External(id)),
            ResolvedName::Broken => None,
        };
        match (names.resolve_name(caller, problems), callee) {
            (ResolvedName::Local(caller), Some(callee)) => edges.push(ResolvedEdge {
                caller,
                callee,
                span,
                declared,
            }),
            (ResolvedName::Local(_), None) => {}
            (unknown, _) => {
                if let ResolvedName::External(id) = unknown {
                    let text =
                        format!("{id} is not below `functions:`: a caller must be in this file");
                    problems.add_error(caller.span, text);
                }
                reported_callers.insert(caller.text.clone());
            }
        }
    }
    edges
}

/// Name of a function as its caller writes it: without the namespace when it is the same.
fn relative_name(callee: &FunctionId, caller: &FunctionDraft) -> String {
    match callee.namespace == caller.spec.namespace {
        true => callee.name.to_string(),
        false => callee.to_string(),
    }
}

fn check_acyclic(
    chain: &ChainDeclaration,
    edges: &[ResolvedEdge<'_>],
    drafts: &[FunctionDraft],
    problems: &mut ProblemList<'_>,
) {
    let local_edge = |edge: &ResolvedEdge<'_>| match edge.callee {
        // Edges from a function to itself are allowed (recursion), so they do not count as cycles.
        ResolvedCallee::Local(callee) if callee != edge.caller => {
            Some((edge.caller, callee, edge.span))
        }
        _ => None,
    };
    // Functions of other namespaces cannot close a cycle: their own edges are not in this file.
    let mut graph: Vec<_> = edges.iter().filter_map(local_edge).collect();
    // Each round removes one edge of the cycle found; five cycles are enough for one report.
    for _ in 0..5 {
        let pairs: Vec<_> = graph.iter().map(|(from, to, _)| (*from, *to)).collect();
        let Some(cycle) = cycle::find_cycle(&pairs) else {
            return;
        };
        // The report points at one edge: without it, this cycle is broken.
        let closing = cycle.last().copied().expect("a cycle has edges");
        let names: Vec<_> = cycle
            .iter()
            .map(|edge| drafts[pairs[*edge].0].spec.service.as_str())
            .collect();
        let text = format!(
            "chain {} has a cycle: {}",
            shorten(&chain.name.text),
            format_cycle(&names)
        );
        problems
            .add_error(graph[closing].2, text)
            .set_help("a chain is acyclic; only an edge from a function to itself is allowed");
        graph.remove(closing);
    }
}

/// Formats a cycle; a long one is shortened in the middle.
fn format_cycle(names: &[&str]) -> String {
    match names.len() {
        0..=12 => format!("{} -> {}", names.join(" -> "), names[0]),
        n => format!(
            "{} -> ... -> {} -> {}",
            names[..8].join(" -> "),
            names[n - 2..].join(" -> "),
            names[0]
        ),
    }
}

/// Chain of each function.
#[derive(Default)]
struct ChainMembership {
    callers: BTreeMap<usize, String>,
    callees: BTreeMap<usize, BTreeSet<String>>,
}

impl ChainMembership {
    fn add_caller(
        &mut self,
        caller: usize,
        chain: &SpannedText,
        span: SourceSpan,
        drafts: &[FunctionDraft],
        problems: &mut ProblemList<'_>,
    ) {
        let chain_of_caller = self
            .callers
            .entry(caller)
            .or_insert_with(|| chain.text.clone());
        if *chain_of_caller != chain.text {
            let name = &drafts[caller].spec.service;
            let text = format!(
                "{name} calls others in chain {chain_of_caller} and in chain {}",
                chain.text
            );
            problems
                .add_error(span, text)
                .set_help("a function belongs to one chain: write all its edges there");
        }
    }

    fn add_callee(&mut self, callee: usize, chain: &str) {
        self.callees
            .entry(callee)
            .or_default()
            .insert(chain.to_owned());
    }

    fn write_annotations(self, chains: &[ChainDeclaration], drafts: &mut [FunctionDraft]) {
        for (callee, chains) in self.callees {
            // Called from two chains: it belongs to neither, so their delivery and isolation do not
            // apply.
            if let (false, 1, Some(chain)) = (
                self.callers.contains_key(&callee),
                chains.len(),
                chains.first(),
            ) {
                drafts[callee]
                    .spec
                    .annotations
                    .entry(policy::CHAIN.to_owned())
                    // The author's own annotation wins over the chain.
                    .or_insert_with(|| chain.clone());
            }
        }
        for (caller, chain) in self.callers {
            drafts[caller]
                .spec
                .annotations
                .entry(policy::CHAIN.to_owned())
                .or_insert(chain);
        }
        for chain in chains {
            let of_chain = |draft: &&mut FunctionDraft| {
                draft.spec.annotations.get(policy::CHAIN) == Some(&chain.name.text)
            };
            for draft in drafts.iter_mut().filter(of_chain) {
                for (annotation, value) in &chain.settings {
                    draft
                        .spec
                        .annotations
                        .entry((*annotation).to_owned())
                        .or_insert_with(|| value.clone());
                }
            }
        }
    }
}
