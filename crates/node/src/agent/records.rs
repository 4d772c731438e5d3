//! All instances that are not gone, found by their id and by their function.

use std::collections::{BTreeMap, BTreeSet};

use nearpath_types::{FunctionId, InstanceId};

use super::record::Record;

/// Every record is in both indexes; who changes one through [`Records::get_mut`] leaves its id and its function alone.
#[derive(Default)]
pub(super) struct Records {
    all: BTreeMap<InstanceId, Record>,
    by_function: BTreeMap<FunctionId, BTreeSet<InstanceId>>,
}

impl Records {
    pub(super) fn insert(&mut self, record: Record) {
        self.by_function.entry(record.function.clone()).or_default().insert(record.id);
        self.all.insert(record.id, record);
    }

    pub(super) fn remove(&mut self, id: InstanceId) -> Option<Record> {
        let record = self.all.remove(&id)?;
        if let Some(ids) = self.by_function.get_mut(&record.function) {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_function.remove(&record.function);
            }
        }
        Some(record)
    }

    pub(super) fn get_mut(&mut self, id: InstanceId) -> Option<&mut Record> {
        self.all.get_mut(&id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a function has any.
    pub(super) fn has(&self, function: &FunctionId) -> bool {
        self.by_function.contains_key(function)
    }

    /// Those of a function, the oldest first.
    pub(super) fn of(&self, function: &FunctionId) -> impl Iterator<Item = &Record> {
        self.by_function.get(function).into_iter().flatten().filter_map(|id| self.all.get(id))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> + Clone {
        self.all.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::lots::Lot;
    use nearpath_types::policy::Transport;
    use nearpath_types::{DesiredFunction, FunctionSpec, InstanceAddr, Revision};
    use proptest::prelude::*;
    use std::time::Instant;

    fn record(id: u64, function: &str) -> Record {
        let addr = InstanceAddr(([127, 0, 0, 1], 1).into());
        let lot = Lot { id: InstanceId(id), uid: 1, eip: None, addr, ports: None };
        let spec = FunctionSpec::named(function.parse().unwrap());
        let desired =
            DesiredFunction { spec: spec.into(), revision: Revision(1), replicas: 1, secrets: BTreeMap::new() };
        Record::starting(lot, &desired, Transport::Auto, Instant::now()).0
    }

    proptest! {
        #[test]
        fn both_indexes_tell_the_same(steps in prop::collection::vec((any::<bool>(), 0u64..8, "[ab]"), 0..40)) {
            let mut records = Records::default();
            for (comes, id, function) in steps {
                match comes {
                    true if records.get_mut(InstanceId(id)).is_none() => records.insert(record(id, &function)),
                    _ => drop(records.remove(InstanceId(id))),
                }
                for function in ["a", "b"] {
                    let function: FunctionId = function.parse().unwrap();
                    let scanned: Vec<_> = records.iter().filter(|one| one.function == function).map(|one| one.id).collect();
                    let found: Vec<_> = records.of(&function).map(|one| one.id).collect();
                    prop_assert_eq!(records.has(&function), !scanned.is_empty());
                    prop_assert_eq!(found, scanned);
                }
            }
        }
    }
}
