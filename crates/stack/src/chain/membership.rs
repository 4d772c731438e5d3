//! Chain of each function.

use std::collections::{BTreeMap, BTreeSet};

use nearpath_types::policy;

use super::declaration::ChainDeclaration;
use crate::function::FunctionDraft;
use crate::problem::ProblemList;
use crate::source::SourceSpan;
use crate::yaml::typed_nodes::SpannedText;

/// Functions of chains, by their positions in the list of functions.
#[derive(Default)]
pub(super) struct ChainMembership {
    callers: BTreeMap<usize, String>,
    callees: BTreeMap<usize, BTreeSet<String>>,
}

impl ChainMembership {
    pub(super) fn add_caller(
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

    pub(super) fn add_callee(&mut self, callee: usize, chain: &str) {
        self.callees
            .entry(callee)
            .or_default()
            .insert(chain.to_owned());
    }

    /// Writes chains and their settings into the annotations of functions.
    pub(super) fn write_annotations(
        self,
        chains: &[ChainDeclaration],
        drafts: &mut [FunctionDraft],
    ) {
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
