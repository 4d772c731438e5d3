//! Instances of each chain, as input of the placement.

use std::collections::BTreeMap;

use nearpath_types::policy::ChainPlacement;

use super::NodeAgent;
use super::function_state::FunctionState;
use crate::placement::placer::ChainThreads;

impl NodeAgent {
    /// Returns whether any chain lets the node choose a processor.
    pub(super) fn needs_placement(&self) -> bool {
        let mut policies = self.functions.values().filter_map(FunctionState::policy);
        policies.any(|policy| policy.chain.is_some() && policy.placement != ChainPlacement::Spread)
    }

    /// Returns the running instances of each chain, by domain. If functions disagree, the most
    /// restrictive placement applies.
    pub(super) fn chain_threads(&self) -> BTreeMap<String, ChainThreads> {
        let mut chains: BTreeMap<String, ChainThreads> = BTreeMap::new();
        for (id, function) in &self.functions {
            let Some(policy) = function.policy() else {
                continue;
            };
            let Some(domain) = policy.domain(id) else {
                continue;
            };
            let placement = policy.placement;
            let chain = chains.entry(domain).or_insert_with(|| ChainThreads {
                placement,
                functions: 0,
                members: Vec::new(),
            });
            chain.placement = chain.placement.min(placement);
            let running = self
                .instances
                .instances_of(id)
                .filter_map(|one| Some((one.id, one.meter.as_ref()?.process())));
            let before = chain.members.len();
            chain.members.extend(running);
            // Only functions that run count: a sleeping one has no thread to share a processor
            // with.
            chain.functions += usize::from(chain.members.len() > before);
        }
        chains
    }
}
