//! The top of a stack file: each section to those who read it, and the finished functions back.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::function::Draft;
use crate::problem::{Problems, did_you_mean};
use crate::yaml::shape::brief;
use crate::yaml::{Entry, Node};
use crate::{Stack, Surroundings, chain, function};

const TOP: &[&str] = &["version", "provider", "functions", "configuration", "chains", "egress"];

/// Reads one file.
pub(crate) struct Reader<'a, 'p> {
    /// Where relative paths start.
    pub(crate) folder: &'a Path,
    pub(crate) around: &'a dyn Surroundings,
    pub(crate) problems: &'a mut Problems<'p>,
}

impl Reader<'_, '_> {
    /// What the file asks for, as far as it can be understood.
    pub(crate) fn stack(&mut self, root: &Node) -> Stack {
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
            let text = format!("unknown provider `{}`", brief(&name.text));
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
            let what = format!("egress.{}", brief(&entry.key));
            let destinations = function::egress::read(&entry.value, &what, self.problems);
            match names.get(&entry.key) {
                Some(index) => drafts[*index].egress(destinations, self.problems),
                None if broken.contains(&entry.key) => {}
                None => {
                    let text = format!("function `{}` is not below `functions:`", brief(&entry.key));
                    let names = names.keys().map(String::as_str);
                    self.problems.error(entry.place, text).help = did_you_mean(&entry.key, names);
                }
            }
        }
    }
}
