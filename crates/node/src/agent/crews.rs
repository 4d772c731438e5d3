//! The chains' instances as the placement sees them.

use std::collections::BTreeMap;

use nearpath_types::policy::Placement;

use super::Agent;
use crate::placement::placer::Crew;

impl Agent {
    /// Whether any chain leaves it to the node where it runs.
    pub(super) fn places(&self) -> bool {
        let mut policies = self.functions.values().map(|function| function.policy());
        policies.any(|policy| policy.chain.is_some() && policy.placement != Placement::Spread)
    }

    /// What runs of each chain, by its domain. Functions that do not agree get what moves them least.
    pub(super) fn crews(&self) -> BTreeMap<String, Crew> {
        let mut crews: BTreeMap<String, Crew> = BTreeMap::new();
        for (id, function) in &self.functions {
            let Some(domain) = function.policy().domain(id) else { continue };
            let wish = function.policy().placement;
            let crew = crews.entry(domain).or_insert_with(|| Crew { wish, functions: 0, members: Vec::new() });
            crew.wish = crew.wish.min(wish);
            let running = self.records.of(id).filter_map(|one| Some((one.id, one.meter.as_ref()?.process())));
            let before = crew.members.len();
            crew.members.extend(running);
            crew.functions += usize::from(crew.members.len() > before);
        }
        crews
    }
}
