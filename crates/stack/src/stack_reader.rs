//! The top of a stack file: each section to those who read it, and the finished functions back.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use crate::function::FunctionDraft;
use crate::problem::{ProblemList, suggest_similar};
use crate::yaml::typed_nodes::shorten;
use crate::yaml::{YamlEntry, YamlNode};
use crate::{StackContext, StackSpec, chain, function};

const TOP_LEVEL_KEYS: &[&str] = &[
    "version",
    "provider",
    "functions",
    "configuration",
    "chains",
    "egress",
];

/// Reads one file.
pub(crate) struct StackReader<'a, 'p> {
    /// Where relative paths start.
    pub(crate) folder: &'a Path,
    pub(crate) context: &'a dyn StackContext,
    pub(crate) problems: &'a mut ProblemList<'p>,
}

impl StackReader<'_, '_> {
    /// What the file asks for, as far as it can be understood.
    pub(crate) fn read_stack(&mut self, root: &YamlNode) -> StackSpec {
        let mut stack = StackSpec::default();
        let (mut drafts, mut broken) = (Vec::new(), BTreeSet::new());
        let entries = self.problems.expect_map(root, "a stack file");
        for entry in entries {
            match entry.key.as_str() {
                "provider" => stack.gateway = self.read_provider(&entry.value),
                "functions" => (drafts, broken) = self.read_functions(&entry.value),
                key if TOP_LEVEL_KEYS.contains(&key) => {}
                _ => self
                    .problems
                    .warn_unknown_key(entry, "the file", TOP_LEVEL_KEYS),
            }
        }
        for entry in entries {
            match entry.key.as_str() {
                "chains" => self.apply_chains(&entry.value, &mut drafts, &broken),
                "egress" => self.apply_egress(&entry.value, &mut drafts, &broken),
                _ => {}
            }
        }
        if drafts.is_empty() && broken.is_empty() {
            self.problems
                .add_error(root.place, "there is no function in this file")
                .set_help("add one below `functions:`");
        }
        stack.functions = drafts
            .into_iter()
            .map(|draft| draft.into_spec(self.problems))
            .collect();
        stack
    }

    fn read_provider(&mut self, node: &YamlNode) -> Option<String> {
        let mut gateway = None;
        for entry in self.problems.expect_map(node, "provider") {
            match entry.key.as_str() {
                "gateway" => {
                    gateway = self
                        .problems
                        .expect_text(&entry.value, "provider.gateway")
                        .map(|text| text.text)
                }
                "name" => self.check_provider_name(entry),
                "network" => {}
                _ => self
                    .problems
                    .warn_unknown_key(entry, "provider", &["name", "gateway"]),
            }
        }
        gateway
    }

    fn check_provider_name(&mut self, entry: &YamlEntry) {
        let Some(name) = self.problems.expect_text(&entry.value, "provider.name") else {
            return;
        };
        if !["openfaas", "faas", "nearpath"].contains(&name.text.as_str()) {
            let text = format!("unknown provider `{}`", shorten(&name.text));
            self.problems
                .add_error(name.place, text)
                .set_help("write `name: openfaas`");
        }
    }

    /// The functions, and the names of those that could not be read.
    fn read_functions(&mut self, node: &YamlNode) -> (Vec<FunctionDraft>, BTreeSet<String>) {
        let (mut drafts, mut broken) = (Vec::new(), BTreeSet::new());
        for entry in self.problems.expect_map(node, "functions") {
            match function::read_function(entry, self.folder, self.context, self.problems) {
                Some(draft) => drafts.push(draft),
                None => {
                    broken.insert(entry.key.clone());
                }
            }
        }
        (drafts, broken)
    }

    fn apply_chains(
        &mut self,
        node: &YamlNode,
        drafts: &mut [FunctionDraft],
        broken: &BTreeSet<String>,
    ) {
        let entries = self.problems.expect_map(node, "chains").iter();
        let chains: Vec<_> = entries
            .map(|entry| chain::read_chain(entry, self.problems))
            .collect();
        chain::apply_chains(&chains, drafts, broken, self.problems);
    }

    fn apply_egress(
        &mut self,
        node: &YamlNode,
        drafts: &mut [FunctionDraft],
        broken: &BTreeSet<String>,
    ) {
        let names = drafts
            .iter()
            .enumerate()
            .map(|(index, draft)| (draft.spec.service.to_string(), index));
        let names: HashMap<_, _> = names.collect();
        for entry in self.problems.expect_map(node, "egress") {
            let what = format!("egress.{}", shorten(&entry.key));
            let destinations =
                function::egress::read_destinations(&entry.value, &what, self.problems);
            match names.get(&entry.key) {
                Some(index) => drafts[*index].add_egress(destinations, self.problems),
                None if broken.contains(&entry.key) => {}
                None => {
                    let text = format!(
                        "function `{}` is not below `functions:`",
                        shorten(&entry.key)
                    );
                    let names = names.keys().map(String::as_str);
                    self.problems.add_error(entry.place, text).help =
                        suggest_similar(&entry.key, names);
                }
            }
        }
    }
}
