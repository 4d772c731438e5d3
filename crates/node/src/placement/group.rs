//! Instances by what is placed together.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use nearpath_types::policy::ChainPlacement;
use nearpath_types::{FunctionId, InstanceId};

use crate::machine::InstanceProcess;

/// A running instance, and its process.
pub(crate) type GroupMember = (InstanceId, Arc<dyn InstanceProcess>);

/// Functions that are placed together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PlacementGroup {
    /// A chain, by its security domain.
    Chain(String),
    /// A function without a chain.
    Function(FunctionId),
}

impl fmt::Display for PlacementGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chain(domain) => f.write_str(domain),
            Self::Function(id) => write!(f, "function {id}"),
        }
    }
}

/// The running instances of a group.
pub(crate) struct GroupInstances {
    placement: ChainPlacement,
    /// Functions with running instances. A sleeping one has no thread to share a processor with.
    pub(super) functions: BTreeMap<FunctionId, Vec<GroupMember>>,
}

impl GroupInstances {
    pub(crate) fn new(placement: ChainPlacement) -> Self {
        Self {
            placement,
            functions: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, function: &FunctionId, member: GroupMember) {
        let members = self.functions.entry(function.clone()).or_default();
        members.push(member);
    }

    /// Returns the effective placement. A single function of a chain has nothing to share a processor
    /// with, and several instances of a function are meant to run beside each other.
    pub(super) fn placement(&self, group: &PlacementGroup) -> ChainPlacement {
        let may_be_placed = match group {
            PlacementGroup::Chain(_) => self.functions.len() > 1,
            PlacementGroup::Function(_) => self.members().count() == 1,
        };
        match self.placement {
            ChainPlacement::Auto if !may_be_placed => ChainPlacement::Spread,
            placement => placement,
        }
    }

    pub(super) fn members(&self) -> impl Iterator<Item = &GroupMember> {
        self.functions.values().flatten()
    }
}

pub(crate) type InstancesByGroup = BTreeMap<PlacementGroup, GroupInstances>;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::machine::ProcessExit;
    use futures_util::future::BoxFuture;

    struct NoProcess;

    impl InstanceProcess for NoProcess {
        fn terminate(&self) {}
        fn kill(&self) {}
        fn release_resources(&self) {}
        fn wait_exit(&self) -> BoxFuture<'_, ProcessExit> {
            Box::pin(std::future::pending())
        }
        fn read_usage(&self) -> Option<crate::machine::ProcessUsage> {
            None
        }
    }

    fn instances(placement: ChainPlacement, functions: &[&str]) -> GroupInstances {
        let mut group = GroupInstances::new(placement);
        for (number, function) in functions.iter().enumerate() {
            let id = InstanceId(number as u64);
            group.add(&function.parse().unwrap(), (id, Arc::new(NoProcess)));
        }
        group
    }

    #[test]
    fn what_shares_nothing_is_spread() {
        use ChainPlacement::{Auto, Core, Spread};
        let chain = PlacementGroup::Chain("shop.dev".to_owned());
        let function = PlacementGroup::Function("a".parse().unwrap());
        for (group, placement, functions, effective) in [
            (&chain, Auto, &["a", "b"][..], Auto),
            (&chain, Auto, &["a", "a"], Spread),
            (&chain, Core, &["a"], Core),
            (&function, Auto, &["a"], Auto),
            (&function, Auto, &["a", "a"], Spread),
            (&function, Core, &["a", "a"], Core),
        ] {
            assert_eq!(instances(placement, functions).placement(group), effective);
        }
    }
}
