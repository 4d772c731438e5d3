//! `chains:`: the edges of applications, checked against the functions of the file.
//!
//! ```yaml
//! chains:
//!   shop:
//!     edges: { frontend: [cart, ads, rates=currency], cart: [{ to: store, balance: connection }] }
//!     topics: { order/placed: { from: [cart], to: [mail, audit] } }
//!     delivery: ring
//!     isolation: shared
//!     placement: auto
//!     pages: small
//!   news: ["front -> feed -> store", "front -> ads"]
//! ```
//!
//! A chain is a directed acyclic graph; only edges from a function to itself are allowed in
//! addition. A function belongs to the chain in which it calls others. A function that only answers
//! belongs to the chain that calls it, if there is exactly one.

mod acyclic;
mod cycle;
mod declaration;
mod function_names;
mod membership;
mod resolved_edge;
mod topic;
mod topic_declaration;

use std::collections::BTreeSet;

use nearpath_types::{FunctionId, policy};

use crate::function::FunctionDraft;
use crate::problem::ProblemList;
use acyclic::check_acyclic;
use function_names::FunctionNames;
use membership::ChainMembership;
use resolved_edge::{ResolvedCallee, ResolvedEdge, resolve_edges};

pub(crate) use declaration::{ChainDeclaration, read_chain};

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

/// Returns the name of a function as its caller writes it: without the namespace when it is the same.
fn relative_name(callee: &FunctionId, caller: &FunctionDraft) -> String {
    match callee.namespace == caller.spec.namespace {
        true => callee.name.to_string(),
        false => callee.to_string(),
    }
}
