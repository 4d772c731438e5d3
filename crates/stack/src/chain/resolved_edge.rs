//! Edges whose functions are known.

use std::collections::BTreeSet;

use nearpath_types::{FunctionId, policy};

use super::declaration::{ChainDeclaration, DeclaredEdge};
use super::function_names::{FunctionNames, ResolvedName};
use crate::problem::ProblemList;
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::shorten;

/// An edge whose ends are known.
pub(super) struct ResolvedEdge<'a> {
    /// Position of the caller in the list of functions.
    pub(super) caller: usize,
    pub(super) callee: ResolvedCallee,
    pub(super) span: SourceSpan,
    pub(super) declared: &'a DeclaredEdge,
}

/// Callee of an edge.
pub(super) enum ResolvedCallee {
    /// Position in the list of functions.
    Local(usize),
    /// Function of another namespace that is not in this file.
    External(FunctionId),
}

/// Resolves the edges of a chain. Each unknown caller is reported once.
pub(super) fn resolve_edges<'c>(
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
