//! All instances that are not gone, by id and by function.

use std::collections::{BTreeMap, BTreeSet};

use nearpath_types::{FunctionId, InstanceId};

use super::instance_record::InstanceRecord;

/// Both indexes contain every record. Changes through [`InstanceTable::get_mut`] must keep id and
/// function.
#[derive(Default)]
pub(super) struct InstanceTable {
    all: BTreeMap<InstanceId, InstanceRecord>,
    by_function: BTreeMap<FunctionId, BTreeSet<InstanceId>>,
}

impl InstanceTable {
    pub(super) fn insert(&mut self, record: InstanceRecord) {
        self.by_function
            .entry(record.function.clone())
            .or_default()
            .insert(record.id);
        self.all.insert(record.id, record);
    }

    pub(super) fn remove(&mut self, id: InstanceId) -> Option<InstanceRecord> {
        let record = self.all.remove(&id)?;
        if let Some(ids) = self.by_function.get_mut(&record.function) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_function.remove(&record.function);
            }
        }
        Some(record)
    }

    pub(super) fn get(&self, id: InstanceId) -> Option<&InstanceRecord> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: InstanceId) -> Option<&mut InstanceRecord> {
        self.all.get_mut(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns whether a function has instances.
    pub(super) fn has_instances(&self, function: &FunctionId) -> bool {
        self.by_function.contains_key(function)
    }

    /// Returns the instances of a function, oldest first.
    pub(super) fn instances_of(
        &self,
        function: &FunctionId,
    ) -> impl Iterator<Item = &InstanceRecord> {
        self.by_function
            .get(function)
            .into_iter()
            .flatten()
            .filter_map(|id| self.all.get(id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &InstanceRecord> + Clone {
        self.all.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::allocations::InstanceAllocation;
    use nearpath_types::{DesiredFunction, FunctionPolicy, FunctionSpec, InstanceAddr, Revision};
    use proptest::prelude::*;
    use std::time::Instant;

    fn test_record(id: u64, function: &str) -> InstanceRecord {
        let addr = InstanceAddr(([127, 0, 0, 1], 1).into());
        let allocation = InstanceAllocation {
            id: InstanceId(id),
            uid: 1,
            eip: None,
            addr,
            ports: None,
        };
        let spec = FunctionSpec::named(function.parse().unwrap());
        let desired = DesiredFunction {
            spec: spec.into(),
            revision: Revision(1),
            replicas: 1,
            secrets: BTreeMap::new(),
        };
        let policy = FunctionPolicy::default();
        InstanceRecord::new_starting(allocation, &desired, &policy, Instant::now()).0
    }

    proptest! {
        #[test]
        fn both_indexes_stay_consistent(steps in prop::collection::vec((any::<bool>(), 0u64..8, "[ab]"), 0..40)) {
            let mut records = InstanceTable::default();
            for (insert, id, function) in steps {
                match insert {
                    true if records.get_mut(InstanceId(id)).is_none() => records.insert(test_record(id, &function)),
                    _ => drop(records.remove(InstanceId(id))),
                }
                for function in ["a", "b"] {
                    let function: FunctionId = function.parse().unwrap();
                    let scanned: Vec<_> = records.iter().filter(|one| one.function == function).map(|one| one.id).collect();
                    let found: Vec<_> = records.instances_of(&function).map(|one| one.id).collect();
                    prop_assert_eq!(records.has_instances(&function), !scanned.is_empty());
                    prop_assert_eq!(found, scanned);
                }
            }
        }
    }
}
