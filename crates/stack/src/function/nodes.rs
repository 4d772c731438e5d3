//! Nodes of a function: `nodes:` and the annotation of the same meaning.

use nearpath_types::{FunctionPolicy, NodeAddresses, NodeName, policy};

use super::FunctionDraft;
use crate::problem::{ProblemList, suggest_similar};
use crate::yaml::YamlNode;

impl FunctionDraft {
    /// Reads `nodes:`, a list of names, into the annotation.
    pub(super) fn add_nodes(&mut self, value: &YamlNode, problems: &mut ProblemList<'_>) {
        for item in problems.expect_text_list(value, "nodes") {
            // Each item alone: a comma would make two names of it in the annotation.
            match item.text.parse::<NodeName>() {
                Ok(name) => {
                    self.add_list_item(policy::NODES, name.as_str(), item.span);
                    self.node_spans.entry(name).or_insert(item.span);
                }
                Err(error) => {
                    problems.add_error(item.span, error.to_string());
                }
            }
        }
    }

    /// Reports nodes that the list of nodes does not have: the function would run nowhere.
    pub(super) fn check_nodes(&self, known: &NodeAddresses, problems: &mut ProblemList<'_>) {
        // Invalid settings were reported before.
        let nodes = FunctionPolicy::from_spec(&self.spec)
            .map(|policy| policy.nodes)
            .unwrap_or_default();
        for node in nodes.iter().filter(|node| !known.contains_key(*node)) {
            let annotation = self.spans.get(policy::NODES).copied();
            let span = self.node_spans.get(node).copied().or(annotation);
            let text = format!(
                "function {} names node `{node}`, which is not in the list of nodes",
                self.spec.service
            );
            let problem = problems.add_error(span.unwrap_or(self.name_span), text);
            problem.help = suggest_similar(node.as_str(), known.keys().map(NodeName::as_str))
                .or_else(|| Some(format!("add `{node}` to the list of nodes")));
        }
    }
}
