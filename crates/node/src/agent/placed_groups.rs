//! Running instances by what is placed together, as input of the placement.

use std::collections::BTreeMap;

use nearpath_types::InstanceState;
use nearpath_types::policy::ChainPlacement;

use super::NodeAgent;
use super::instance_record::InstanceRecord;
use crate::placement::group::{GroupInstances, InstancesByGroup, PlacementGroup};

impl NodeAgent {
    /// Returns whether anything runs that could be placed.
    pub(super) fn needs_placement(&self) -> bool {
        self.placer.has_choice() && !self.instances.is_empty()
    }

    /// Returns the running instances of each chain and of each lone function.
    pub(super) fn placed_groups(&self) -> InstancesByGroup {
        self.group_instances(self.instances.iter())
    }

    /// Returns those of the chain of an instance; nothing for a lone function.
    pub(super) fn chain_of(&self, record: &InstanceRecord) -> InstancesByGroup {
        let group = self.group_of(record);
        let PlacementGroup::Chain(_) = &group else {
            return BTreeMap::new();
        };
        let members = self.instances.iter();
        self.group_instances(members.filter(|one| self.group_of(one) == group))
    }

    fn group_instances<'a>(
        &self,
        records: impl Iterator<Item = &'a InstanceRecord>,
    ) -> InstancesByGroup {
        let mut groups = InstancesByGroup::new();
        for record in records {
            let Some(meter) = &record.meter else {
                continue;
            };
            let group = self.group_of(record);
            // The start of an instance needs all processors, and its CPU time is not that of calls.
            let is_lone_function = matches!(group, PlacementGroup::Function(_));
            if is_lone_function && record.state != InstanceState::Ready {
                continue;
            }
            let placement = || self.placement_of(&group);
            let instances = groups
                .entry(group.clone())
                .or_insert_with(|| GroupInstances::new(placement()));
            instances.add(&record.function, (record.id, meter.process()));
        }
        groups
    }

    fn group_of(&self, record: &InstanceRecord) -> PlacementGroup {
        let function = &record.function;
        let policy = self.factory.domains.chains().policy(function);
        match policy.and_then(|policy| policy.domain(function)) {
            Some(domain) => PlacementGroup::Chain(domain),
            None => PlacementGroup::Function(function.clone()),
        }
    }

    /// Returns the placement of a group. If functions of a chain disagree, the one that moves them
    /// least applies.
    fn placement_of(&self, group: &PlacementGroup) -> ChainPlacement {
        match group {
            PlacementGroup::Chain(domain) => {
                let functions = self.factory.domains.chains().in_domain(domain);
                let placements = functions.map(|(_, policy)| policy.placement);
                placements.min().unwrap_or_default()
            }
            PlacementGroup::Function(id) => {
                let function = self.functions.get(id);
                let policy = function.and_then(|function| function.policy());
                policy.map_or_else(ChainPlacement::default, |policy| policy.placement)
            }
        }
    }
}
