//! Top level of a stack file: passes each section to its reader and collects the functions.

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
    /// Base of relative paths.
    pub(crate) folder: &'a Path,
    pub(crate) context: &'a dyn StackContext,
    pub(crate) problems: &'a mut ProblemList<'p>,
}

impl StackReader<'_, '_> {
    /// Reads as much of the file as can be understood.
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
        // A second pass: `chains` and `egress` refer to functions, which may be written below them.
        for entry in entries {
            match entry.key.as_str() {
                "chains" => self.apply_chains(&entry.value, &mut drafts, &broken),
                "egress" => self.apply_egress(&entry.value, &mut drafts, &broken),
                _ => {}
            }
        }
        if drafts.is_empty() && broken.is_empty() {
            self.problems
                .add_error(root.span, "there is no function in this file")
                .set_help("add one below `functions:`");
        }
        let known_nodes = self.context.known_nodes();
        stack.functions = drafts
            .into_iter()
            .map(|draft| draft.into_spec(known_nodes, self.problems))
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
                // Accepted for old OpenFaaS files; there is only one network here.
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
        // `faas` is the name in files of early OpenFaaS versions.
        if !["openfaas", "faas", "nearpath"].contains(&name.text.as_str()) {
            let text = format!("unknown provider `{}`", shorten(&name.text));
            self.problems
                .add_error(name.span, text)
                .set_help("write `name: openfaas`");
        }
    }

    /// Reads the functions; also returns the names of those that could not be read.
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
                // Reported already, where the function is declared.
                None if broken.contains(&entry.key) => {}
                None => {
                    let text = format!(
                        "function `{}` is not below `functions:`",
                        shorten(&entry.key)
                    );
                    let names = names.keys().map(String::as_str);
                    self.problems.add_error(entry.span, text).help =
                        suggest_similar(&entry.key, names);
                }
            }
        }
    }
}
