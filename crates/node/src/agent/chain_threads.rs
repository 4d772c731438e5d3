//! Instances of each chain, as input of the placement.

use std::collections::BTreeMap;

use nearpath_types::FunctionId;
use nearpath_types::policy::ChainPlacement;

use super::NodeAgent;
use crate::chains::ChainIndex;
use crate::placement::placer::{ChainMember, ChainThreads};

impl NodeAgent {
    /// Returns whether any chain lets the node choose a processor.
    pub(super) fn needs_placement(&self) -> bool {
        self.factory.domains.chains().needs_placement()
    }

    /// Returns the running instances of each chain that has some, by domain.
    pub(super) fn chain_threads(&self) -> BTreeMap<String, ChainThreads> {
        let chains = self.factory.domains.chains();
        let mut running: BTreeMap<String, BTreeMap<&FunctionId, Vec<ChainMember>>> =
            BTreeMap::new();
        for record in self.instances.iter() {
            let policy = chains.policy(&record.function);
            let domain = policy.and_then(|policy| policy.domain(&record.function));
            if let Some((domain, meter)) = domain.zip(record.meter.as_ref()) {
                let functions = running.entry(domain).or_default();
                let members = functions.entry(&record.function).or_default();
                members.push((record.id, meter.process()));
            }
        }
        let threads = |(domain, functions): (String, BTreeMap<&FunctionId, Vec<ChainMember>>)| {
            let threads = ChainThreads {
                placement: strictest_placement(chains, &domain),
                // Only functions that run count: a sleeping one has no thread to share a processor
                // with.
                functions: functions
                    .into_iter()
                    .map(|(id, members)| (id.clone(), members))
                    .collect(),
            };
            (domain, threads)
        };
        running.into_iter().map(threads).collect()
    }
}

/// Returns the placement of a chain. If functions disagree, the most restrictive one applies.
fn strictest_placement(chains: &ChainIndex, domain: &str) -> ChainPlacement {
    let placements = chains.in_domain(domain).map(|(_, policy)| policy.placement);
    placements.min().unwrap_or_default()
}
