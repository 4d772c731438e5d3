//! Check that a chain has no cycle.

use super::cycle::find_cycle;
use super::declaration::ChainDeclaration;
use super::resolved_edge::{ResolvedCallee, ResolvedEdge};
use crate::function::FunctionDraft;
use crate::problem::ProblemList;
use crate::yaml::typed_nodes::shorten;

/// Reports the cycles of a chain.
pub(super) fn check_acyclic(
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
        let Some(cycle) = find_cycle(&pairs) else {
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
