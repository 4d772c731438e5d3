//! `stack.yml`: OpenFaaS's format as it is, plus `chains:` and `egress:`, into function specs.
//!
//! The text walks one way: [`subst`] replaces variables, [`tree`] makes nodes that know their places, [`function`],
//! [`chain`] and [`egress`] read and check them, and what comes out is a [`Stack`] of specs in which edges and destinations
//! have become annotations (see `nearpath_types::policy`). No problem hides another: all are reported, each with file, line,
//! column and what to do. Files are data from anybody: size, depth and expansion are bounded.

mod chain;
mod cycle;
mod egress;
mod environment;
mod function;
mod problem;
mod shape;
mod source;
mod subst;
mod surroundings;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::Path;

use nearpath_types::FunctionSpec;

pub use problem::{Problem, Report, Weight};
pub use subst::Lookup;
pub use surroundings::{MAX_FILE, Surroundings, ThisMachine};

use function::Draft;
use problem::{Problems, did_you_mean};
use source::Source;
use tree::{Entry, Node};

/// What a stack file asks for.
#[derive(Debug, Clone, Default)]
pub struct Stack {
    /// `provider.gateway`.
    pub gateway: Option<String>,
    /// In the order of the file.
    pub functions: Vec<FunctionSpec>,
}

const TOP: &[&str] = &["version", "provider", "functions", "configuration", "chains", "egress"];

/// Reads a stack file. The report holds warnings, also when there is a stack.
///
/// # Errors
/// When the file cannot be read at all. What is wrong *in* it is in the report, and then there is no stack.
pub fn read(path: &Path, around: &dyn Surroundings) -> io::Result<(Option<Stack>, Report)> {
    let text = around.file(path)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(parse(&path.display().to_string(), &text, folder, around))
}

/// Parses the text of a stack file. `name` is what problems call it; relative paths start at `folder`.
pub fn parse(name: &str, text: &str, folder: &Path, around: &dyn Surroundings) -> (Option<Stack>, Report) {
    let lookup = |name: &str| around.var(name);
    let (source, flaws) = Source::new(name, text, &lookup);
    let mut problems = Problems::new(&source);
    for flaw in flaws {
        let weight = if flaw.fatal { Weight::Error } else { Weight::Warning };
        let place = source::Place { start: flaw.start, end: flaw.end };
        problems.push(weight, place, flaw.text);
    }
    let root = tree::parse(&source, &mut problems);
    let stack = root.map(|root| Reader { folder, around, problems: &mut problems }.stack(&root));
    if stack.is_none() && problems.list.is_empty() {
        problems.error(source::Place::default(), "the file is empty").help("begin with `functions:`");
    }
    let report = Report::sorted(problems.list);
    (stack.filter(|_| !report.is_fatal()), report)
}

struct Reader<'a, 'p> {
    folder: &'a Path,
    around: &'a dyn Surroundings,
    problems: &'a mut Problems<'p>,
}

impl Reader<'_, '_> {
    fn stack(&mut self, root: &Node) -> Stack {
        let mut stack = Stack::default();
        let (mut drafts, mut broken) = (Vec::new(), BTreeSet::new());
        let entries = self.problems.map(root, "a stack file");
        for entry in entries {
            match entry.key.as_str() {
                "provider" => stack.gateway = self.provider(&entry.value),
                "functions" => (drafts, broken) = self.functions(&entry.value),
                key if TOP.contains(&key) => {}
                _ => self.problems.unknown(entry, "the file", TOP),
            }
        }
        for entry in entries {
            match entry.key.as_str() {
                "chains" => self.chains(&entry.value, &mut drafts, &broken),
                "egress" => self.egress(&entry.value, &mut drafts, &broken),
                _ => {}
            }
        }
        if drafts.is_empty() && broken.is_empty() {
            self.problems.error(root.place, "there is no function in this file").help("add one below `functions:`");
        }
        stack.functions = drafts.into_iter().map(|draft| draft.finish(self.problems)).collect();
        stack
    }

    fn provider(&mut self, node: &Node) -> Option<String> {
        let mut gateway = None;
        for entry in self.problems.map(node, "provider") {
            match entry.key.as_str() {
                "gateway" => gateway = self.problems.text(&entry.value, "provider.gateway").map(|text| text.text),
                "name" => self.provider_name(entry),
                "network" => {}
                _ => self.problems.unknown(entry, "provider", &["name", "gateway"]),
            }
        }
        gateway
    }

    fn provider_name(&mut self, entry: &Entry) {
        let Some(name) = self.problems.text(&entry.value, "provider.name") else { return };
        if !["openfaas", "faas", "nearpath"].contains(&name.text.as_str()) {
            let text = format!("unknown provider `{}`", shape::brief(&name.text));
            self.problems.error(name.place, text).help("write `name: openfaas`");
        }
    }

    /// The functions, and the names of those that could not be read.
    fn functions(&mut self, node: &Node) -> (Vec<Draft>, BTreeSet<String>) {
        let (mut drafts, mut broken) = (Vec::new(), BTreeSet::new());
        for entry in self.problems.map(node, "functions") {
            match function::read(entry, self.folder, self.around, self.problems) {
                Some(draft) => drafts.push(draft),
                None => {
                    broken.insert(entry.key.clone());
                }
            }
        }
        (drafts, broken)
    }

    fn chains(&mut self, node: &Node, drafts: &mut [Draft], broken: &BTreeSet<String>) {
        let entries = self.problems.map(node, "chains").iter();
        let chains: Vec<_> = entries.map(|entry| chain::read(entry, self.problems)).collect();
        chain::apply(&chains, drafts, broken, self.problems);
    }

    fn egress(&mut self, node: &Node, drafts: &mut [Draft], broken: &BTreeSet<String>) {
        let names = drafts.iter().enumerate().map(|(index, draft)| (draft.spec.service.to_string(), index));
        let names: HashMap<_, _> = names.collect();
        for entry in self.problems.map(node, "egress") {
            let destinations = self.problems.texts(&entry.value, &format!("egress.{}", shape::brief(&entry.key)));
            match names.get(&entry.key) {
                Some(index) => drafts[*index].egress(&destinations, self.problems),
                None if broken.contains(&entry.key) => {}
                None => {
                    let text = format!("function `{}` is not below `functions:`", shape::brief(&entry.key));
                    let names = names.keys().map(String::as_str);
                    self.problems.error(entry.place, text).help = did_you_mean(&entry.key, names);
                }
            }
        }
    }
}
