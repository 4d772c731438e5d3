//! `chains:`: the edges of applications, read and checked against the functions of the file.
//!
//! ```yaml
//! chains:
//!   shop:
//!     edges: { frontend: [cart, ads, rates=currency], cart: [store] }
//!     topics: { order/placed: { from: [cart], to: [mail, audit] } }
//!     delivery: ring
//!     isolation: shared
//!     placement: auto
//!     pages: small
//!   news: ["front -> feed -> store", "front -> ads"]
//! ```
//!
//! A chain is a directed acyclic graph; only an edge from a function to itself is allowed beside. A function belongs to the
//! chain in which it calls others; one that only answers belongs to the chain that calls it, if that is one alone.

mod cycle;
mod topic;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use nearpath_types::{FunctionId, FunctionName, policy};

use crate::function::Draft;
use crate::problem::{Problems, did_you_mean};
use crate::text::Place;
use crate::yaml::shape::{Text, brief};
use crate::yaml::{Entry, Kind, Node};

const KEYS: &[&str] = &["edges", "topics", "delivery", "isolation", "placement", "pages"];
/// What holds for all functions of a chain: key, annotation, values.
const WAYS: &[(&str, &str, &[&str])] = &[
    ("delivery", policy::DELIVERY, &["ring", "sockmap", "poll"]),
    ("isolation", policy::ISOLATION, &["shared", "strict"]),
    ("placement", policy::PLACEMENT, &["auto", "core", "spread"]),
    ("pages", policy::PAGES, &["small", "huge", "auto"]),
];

/// Caller → callee, as written.
struct Edge {
    caller: Text,
    callee: Text,
    /// What the caller calls it, beside its own name.
    alias: Option<String>,
}

impl Edge {
    /// `callee` may be `ALIAS=NAME`; a caller is named without its alias, so that a walk of arrows can pass through it.
    fn new(caller: Text, callee: Text) -> Self {
        let (_, caller) = split(caller);
        let (alias, callee) = split(callee);
        Self { caller, callee, alias }
    }
}

fn split(name: Text) -> (Option<String>, Text) {
    match name.text.split_once('=') {
        None => (None, name),
        Some((alias, rest)) => {
            (Some(alias.trim().to_owned()), Text { text: rest.trim().to_owned(), place: name.place })
        }
    }
}

/// One application.
pub(crate) struct Chain {
    name: Text,
    edges: Vec<Edge>,
    topics: Vec<topic::Topic>,
    /// Annotations of all its functions.
    ways: Vec<(&'static str, String)>,
}

/// Reads the edges of one chain, in the long or the short form.
pub(crate) fn read(entry: &Entry, problems: &mut Problems<'_>) -> Chain {
    let name = Text { text: entry.key.clone(), place: entry.place };
    if name.text.parse::<FunctionName>().is_err() {
        let text = format!("invalid chain name `{}`: write it like a function's name", brief(&name.text));
        problems.error(name.place, text).help("lower-case letters, digits and `-`, starts with a letter, at most 63");
    }
    let home = format!("chain {}", brief(&name.text));
    let mut chain = Chain { name, edges: Vec::new(), topics: Vec::new(), ways: Vec::new() };
    if let Kind::List(_) = &entry.value.kind {
        arrows(&entry.value, &mut chain.edges, problems);
        return chain;
    }
    for field in problems.map(&entry.value, &home) {
        match field.key.as_str() {
            "edges" => read_edges(&field.value, &mut chain.edges, problems),
            "topics" => {
                let entries = problems.map(&field.value, "topics").iter();
                chain.topics = entries.map(|entry| topic::read(entry, problems)).collect();
            }
            key => match WAYS.iter().find(|(way, ..)| *way == key) {
                Some(way) => chain.ways.extend(read_way(way, &field.value, problems)),
                None => problems.unknown(field, &home, KEYS),
            },
        }
    }
    doubt_pages(&chain, problems);
    chain
}

/// A pool that its readers cannot write has small pages only: a huge one that was never filled could end them (ADR 16).
fn doubt_pages(chain: &Chain, problems: &mut Problems<'_>) {
    let is = |annotation, value: &str| chain.ways.iter().any(|(key, chosen)| *key == annotation && chosen == value);
    if is(policy::ISOLATION, "strict") && is(policy::PAGES, "huge") {
        let text = format!("chain {} is strict: its memory has small pages", brief(&chain.name.text));
        problems.warn(chain.name.place, text).help("leave `pages` out, or `isolation`");
    }
}

fn read_way(
    (key, annotation, values): &(&str, &'static str, &[&str]),
    node: &Node,
    problems: &mut Problems<'_>,
) -> Option<(&'static str, String)> {
    let text = problems.text(node, key)?;
    if values.contains(&text.text.as_str()) {
        return Some((annotation, text.text));
    }
    let problem = problems.error(text.place, format!("unknown {key} `{}`", brief(&text.text)));
    problem.help(format!("one of {}", values.join(", ")));
    None
}

fn read_edges(node: &Node, edges: &mut Vec<Edge>, problems: &mut Problems<'_>) {
    if let Kind::List(_) = node.kind {
        return arrows(node, edges, problems);
    }
    for entry in problems.map(node, "edges") {
        let caller = Text { text: entry.key.clone(), place: entry.place };
        let callees = problems.texts(&entry.value, &format!("edges.{}", brief(&entry.key)));
        edges.extend(callees.into_iter().map(|callee| Edge::new(caller.clone(), callee)));
    }
}

/// Lines of `a -> b -> c`.
fn arrows(node: &Node, edges: &mut Vec<Edge>, problems: &mut Problems<'_>) {
    for text in problems.texts(node, "edges") {
        let names: Vec<_> = text.text.split("->").map(str::trim).collect();
        if names.len() < 2 || names.iter().any(|name| name.is_empty()) {
            problems
                .error(text.place, format!("`{}` is not an edge", brief(&text.text)))
                .help("write `caller -> callee`");
            continue;
        }
        let end = |name: &str| Text { text: name.to_owned(), place: text.place };
        edges.extend(names.windows(2).map(|pair| Edge::new(end(pair[0]), end(pair[1]))));
    }
}

/// The functions of the file, found by the names that edges use.
struct Names<'a> {
    by_id: HashMap<FunctionId, usize>,
    by_name: HashMap<String, usize>,
    /// Names whose function could not be read: known, and already complained about.
    broken: &'a BTreeSet<String>,
}

/// What an edge's end stands for.
enum End {
    Here(usize),
    /// A function of another namespace that this file does not hold.
    Elsewhere(FunctionId),
    Broken,
}

impl<'a> Names<'a> {
    fn of(drafts: &[Draft], broken: &'a BTreeSet<String>) -> Self {
        let ids = drafts.iter().map(|draft| draft.spec.id()).enumerate();
        let by_id: HashMap<_, _> = ids.map(|(index, id)| (id, index)).collect();
        let by_name = by_id.iter().map(|(id, index)| (id.name.to_string(), *index)).collect();
        Self { by_id, by_name, broken }
    }

    fn find(&self, name: &Text, problems: &mut Problems<'_>) -> End {
        if self.broken.contains(&name.text) {
            return End::Broken;
        }
        let id = name.text.parse::<FunctionId>();
        if let (true, Ok(id)) = (name.text.contains('.'), &id) {
            return self.by_id.get(id).map_or(End::Elsewhere(id.clone()), |index| End::Here(*index));
        }
        if let Some(index) = self.by_name.get(&name.text) {
            return End::Here(*index);
        }
        let why = if id.is_ok() { "is not below `functions:`" } else { "is not a function's name" };
        let problem = problems.error(name.place, format!("function `{}` {why}", brief(&name.text)));
        problem.help = did_you_mean(&name.text, self.by_name.keys().map(String::as_str));
        End::Broken
    }
}

impl Names<'_> {
    /// A name that a function has means that function.
    fn check_alias(&self, alias: Option<&str>, place: Place, problems: &mut Problems<'_>) {
        let Some(alias) = alias.filter(|alias| self.by_name.contains_key(*alias) || self.broken.contains(*alias))
        else {
            return;
        };
        problems
            .error(place, format!("alias `{}` is a function's name", brief(alias)))
            .help("choose a name that is free");
    }
}

/// Checks all chains and writes their edges into the callers' annotations.
pub(crate) fn apply(chains: &[Chain], drafts: &mut [Draft], broken: &BTreeSet<String>, problems: &mut Problems<'_>) {
    let names = Names::of(drafts, broken);
    let mut homes = Homes::default();
    for chain in chains {
        let edges = resolve(chain, &names, problems);
        acyclic(chain, &edges, drafts, problems);
        for Known { caller, callee, place, alias } in &edges {
            homes.calls_in(*caller, &chain.name, *place, drafts, problems);
            let name = match callee {
                Callee::Here(callee) => {
                    homes.called_in(*callee, &chain.name.text);
                    written(&drafts[*callee].spec.id(), &drafts[*caller])
                }
                Callee::Elsewhere(id) => id.to_string(),
            };
            let name = alias.as_ref().map_or_else(|| name.clone(), |alias| format!("{alias}={name}"));
            drafts[*caller].add(policy::CALLS, &name, *place);
        }
        topic::apply(chain, &names, &mut homes, drafts, problems);
    }
    homes.write(chains, drafts);
}

/// An edge whose ends are known.
struct Known<'a> {
    caller: usize,
    callee: Callee,
    place: Place,
    alias: Option<&'a String>,
}

enum Callee {
    Here(usize),
    Elsewhere(FunctionId),
}

/// The edges whose ends are known; each unknown caller is complained about once.
fn resolve<'c>(chain: &'c Chain, names: &Names<'_>, problems: &mut Problems<'_>) -> Vec<Known<'c>> {
    let (mut told, mut edges) = (BTreeSet::new(), Vec::new());
    for Edge { caller, callee, alias } in &chain.edges {
        let (place, found) = (callee.place, names.find(callee, problems));
        names.check_alias(alias.as_deref(), place, problems);
        if told.contains(&caller.text) {
            continue;
        }
        let callee = match found {
            End::Here(callee) => Some(Callee::Here(callee)),
            End::Elsewhere(id) => Some(Callee::Elsewhere(id)),
            End::Broken => None,
        };
        match (names.find(caller, problems), callee) {
            (End::Here(caller), Some(callee)) => edges.push(Known { caller, callee, place, alias: alias.as_ref() }),
            (End::Here(_), None) => {}
            (unknown, _) => {
                if let End::Elsewhere(id) = unknown {
                    let text = format!("{id} is not below `functions:`: a caller must be in this file");
                    problems.error(caller.place, text);
                }
                told.insert(caller.text.clone());
            }
        }
    }
    edges
}

/// A function's name as its caller writes it: bare within a namespace.
fn written(callee: &FunctionId, caller: &Draft) -> String {
    match callee.namespace == caller.spec.namespace {
        true => callee.name.to_string(),
        false => callee.to_string(),
    }
}

fn acyclic(chain: &Chain, edges: &[Known<'_>], drafts: &[Draft], problems: &mut Problems<'_>) {
    let inner = |edge: &Known<'_>| match edge.callee {
        Callee::Here(callee) if callee != edge.caller => Some((edge.caller, callee, edge.place)),
        _ => None,
    };
    let mut graph: Vec<_> = edges.iter().filter_map(inner).collect();
    for _ in 0..5 {
        let pairs: Vec<_> = graph.iter().map(|(from, to, _)| (*from, *to)).collect();
        let Some(cycle) = cycle::find(&pairs) else { return };
        let closing = cycle.last().copied().expect("a cycle has edges");
        let names: Vec<_> = cycle.iter().map(|edge| drafts[pairs[*edge].0].spec.service.as_str()).collect();
        let text = format!("chain {} has a cycle: {}", brief(&chain.name.text), walk(&names));
        problems
            .error(graph[closing].2, text)
            .help("a chain is acyclic; only an edge from a function to itself is allowed");
        graph.remove(closing);
    }
}

/// A cycle as it is walked; of a long one the start and the end.
fn walk(names: &[&str]) -> String {
    match names.len() {
        0..=12 => format!("{} -> {}", names.join(" -> "), names[0]),
        n => format!("{} -> ... -> {} -> {}", names[..8].join(" -> "), names[n - 2..].join(" -> "), names[0]),
    }
}

/// Which chain each function belongs to.
#[derive(Default)]
struct Homes {
    callers: BTreeMap<usize, String>,
    called: BTreeMap<usize, BTreeSet<String>>,
}

impl Homes {
    fn calls_in(&mut self, caller: usize, chain: &Text, place: Place, drafts: &[Draft], problems: &mut Problems<'_>) {
        let home = self.callers.entry(caller).or_insert_with(|| chain.text.clone());
        if *home != chain.text {
            let name = &drafts[caller].spec.service;
            let text = format!("{name} calls others in chain {home} and in chain {}", chain.text);
            problems.error(place, text).help("a function belongs to one chain: write all its edges there");
        }
    }

    fn called_in(&mut self, callee: usize, chain: &str) {
        self.called.entry(callee).or_default().insert(chain.to_owned());
    }

    fn write(self, chains: &[Chain], drafts: &mut [Draft]) {
        for (callee, chains) in self.called {
            if let (false, 1, Some(chain)) = (self.callers.contains_key(&callee), chains.len(), chains.first()) {
                drafts[callee].spec.annotations.entry(policy::CHAIN.to_owned()).or_insert_with(|| chain.clone());
            }
        }
        for (caller, chain) in self.callers {
            drafts[caller].spec.annotations.entry(policy::CHAIN.to_owned()).or_insert(chain);
        }
        for chain in chains {
            let of_chain = |draft: &&mut Draft| draft.spec.annotations.get(policy::CHAIN) == Some(&chain.name.text);
            for draft in drafts.iter_mut().filter(of_chain) {
                for (annotation, value) in &chain.ways {
                    draft.spec.annotations.entry((*annotation).to_owned()).or_insert_with(|| value.clone());
                }
            }
        }
    }
}
