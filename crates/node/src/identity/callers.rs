//! Permitted callers of functions with certificates. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearpath_types::policy::CallTransport;
use nearpath_types::{FunctionId, FunctionPolicy};

use crate::chains::PolicyChanges;

/// Callers by callee; an empty list for a function without any.
pub(crate) type CallersByFunction = BTreeMap<FunctionId, Vec<FunctionId>>;

/// Functions with certificates, and the edges that they declare.
#[derive(Debug, Default)]
pub(crate) struct DirectCallers {
    policies: BTreeMap<FunctionId, Arc<FunctionPolicy>>,
    /// Callers with certificates by callee, also of callees without one.
    declared: BTreeMap<FunctionId, BTreeSet<FunctionId>>,
}

impl DirectCallers {
    /// Applies new policies; returns the callers of each function for which they may have changed.
    pub(crate) fn apply_changes(
        &mut self,
        changes: &PolicyChanges,
        has_certificate: impl Fn(CallTransport) -> bool,
    ) -> CallersByFunction {
        let mut touched = BTreeSet::new();
        for (id, policy) in changes {
            let policy = policy.as_ref();
            let new = policy.filter(|policy| has_certificate(policy.transport));
            let old = match new {
                Some(new) => self.policies.insert(id.clone(), Arc::clone(new)),
                None => self.policies.remove(id),
            };
            if old.is_some() != new.is_some() {
                touched.insert(id.clone());
            }
            for callee in old.iter().flat_map(|policy| &policy.calls) {
                self.unlink(id, callee);
                touched.insert(callee.clone());
            }
            for callee in new.into_iter().flat_map(|policy| &policy.calls) {
                self.declared
                    .entry(callee.clone())
                    .or_default()
                    .insert(id.clone());
                touched.insert(callee.clone());
            }
        }
        touched
            .into_iter()
            .map(|id| (id.clone(), self.callers_of(&id)))
            .collect()
    }

    /// Returns the callers of a function. Both ends need a certificate, or they cannot call each
    /// other directly.
    fn callers_of(&self, callee: &FunctionId) -> Vec<FunctionId> {
        let declared = self.declared.get(callee);
        let named = declared.filter(|_| self.policies.contains_key(callee));
        named.into_iter().flatten().cloned().collect()
    }

    fn unlink(&mut self, caller: &FunctionId, callee: &FunctionId) {
        let is_empty = self.declared.get_mut(callee).is_some_and(|callers| {
            callers.remove(caller);
            callers.is_empty()
        });
        if is_empty {
            self.declared.remove(callee);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 4] = ["a", "b", "c", "d"];

    fn any_changes() -> impl Strategy<Value = PolicyChanges> {
        let id = || {
            prop::sample::select(NAMES.to_vec())
                .prop_map(|name| name.parse::<FunctionId>().unwrap())
        };
        let calls = prop::collection::btree_set(id(), 0..3);
        let policy = (calls, any::<bool>()).prop_map(|(calls, direct)| {
            Arc::new(FunctionPolicy {
                calls: calls.into_iter().collect(),
                transport: if direct {
                    CallTransport::Quic
                } else {
                    CallTransport::Auto
                },
                ..FunctionPolicy::default()
            })
        });
        prop::collection::btree_map(id(), prop::option::weighted(0.8, policy), 0..4)
    }

    fn is_direct(transport: CallTransport) -> bool {
        transport == CallTransport::Quic
    }

    /// The callers of all functions, from their policies alone.
    fn callers_of_all(policies: &PolicyChanges) -> CallersByFunction {
        let direct = |id: &FunctionId| {
            let policy = policies.get(id).and_then(Option::as_ref);
            policy.filter(|policy| is_direct(policy.transport))
        };
        let mut all = CallersByFunction::new();
        for caller in policies.keys() {
            let calls = direct(caller).into_iter().flat_map(|policy| &policy.calls);
            for callee in calls.filter(|callee| direct(callee).is_some()) {
                all.entry(callee.clone()).or_default().push(caller.clone());
            }
        }
        all
    }

    fn follow(copy: &mut CallersByFunction, changed: CallersByFunction) {
        copy.extend(changed);
        copy.retain(|_, callers| !callers.is_empty());
    }

    proptest! {
        #[test]
        fn changes_lead_to_the_callers_of_all(batches in prop::collection::vec(any_changes(), 0..20)) {
            let (mut policies, mut index) = (PolicyChanges::new(), DirectCallers::default());
            let mut copy = CallersByFunction::new();
            for changes in batches {
                follow(&mut copy, index.apply_changes(&changes, is_direct));
                policies.extend(changes);
                prop_assert_eq!(&copy, &callers_of_all(&policies));
            }
        }
    }

    #[test]
    fn a_lost_change_is_noticed() {
        let caller = FunctionPolicy {
            calls: vec!["b".parse().unwrap()],
            transport: CallTransport::Quic,
            ..FunctionPolicy::default()
        };
        let callee = FunctionPolicy {
            transport: CallTransport::Quic,
            ..FunctionPolicy::default()
        };
        let all = PolicyChanges::from([
            ("a".parse().unwrap(), Some(Arc::new(caller))),
            ("b".parse().unwrap(), Some(Arc::new(callee))),
        ]);
        let mut copy = CallersByFunction::new();
        assert_ne!(copy, callers_of_all(&all), "nothing was applied yet");
        follow(
            &mut copy,
            DirectCallers::default().apply_changes(&all, is_direct),
        );
        assert_eq!(copy, callers_of_all(&all));
    }
}
