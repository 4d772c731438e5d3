//! Deployed functions by chain and by security domain. Pure.
//!
//! A change of one function touches its own domains and chains, whatever the number of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearpath_types::{FunctionId, FunctionPolicy};

/// New policies by function; `None` for one that is gone.
pub(crate) type PolicyChanges = BTreeMap<FunctionId, Option<Arc<FunctionPolicy>>>;

/// Functions with a chain, by what they share.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ChainIndex {
    policies: BTreeMap<FunctionId, Arc<FunctionPolicy>>,
    by_domain: BTreeMap<String, BTreeSet<FunctionId>>,
    by_chain: BTreeMap<String, BTreeSet<FunctionId>>,
}

/// Domains and chains with a function that changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct TouchedChains {
    pub(crate) domains: BTreeSet<String>,
    pub(crate) chains: BTreeSet<String>,
}

impl ChainIndex {
    /// Applies new policies.
    pub(crate) fn apply_changes(&mut self, changes: &PolicyChanges) -> TouchedChains {
        let mut touched = TouchedChains::default();
        for (id, policy) in changes {
            if let Some(old) = self.policies.remove(id) {
                self.unlink(id, &old, &mut touched);
            }
            if let Some(policy) = policy.as_ref().filter(|policy| policy.chain.is_some()) {
                self.link(id, policy, &mut touched);
                self.policies.insert(id.clone(), Arc::clone(policy));
            }
        }
        touched
    }

    fn link(&mut self, id: &FunctionId, policy: &FunctionPolicy, touched: &mut TouchedChains) {
        for (index, key) in keyed(&mut self.by_domain, &mut self.by_chain, id, policy) {
            index.entry(key).or_default().insert(id.clone());
        }
        touched.add(id, policy);
    }

    fn unlink(&mut self, id: &FunctionId, policy: &FunctionPolicy, touched: &mut TouchedChains) {
        for (index, key) in keyed(&mut self.by_domain, &mut self.by_chain, id, policy) {
            let is_empty = index.get_mut(&key).is_some_and(|members| {
                members.remove(id);
                members.is_empty()
            });
            if is_empty {
                index.remove(&key);
            }
        }
        touched.add(id, policy);
    }

    /// Returns the policy of a function with a chain.
    pub(crate) fn policy(&self, id: &FunctionId) -> Option<&FunctionPolicy> {
        self.policies.get(id).map(|policy| &**policy)
    }

    /// Returns whether a domain has functions.
    pub(crate) fn has_domain(&self, domain: &str) -> bool {
        self.by_domain.contains_key(domain)
    }

    /// Returns the functions of a domain, in order.
    pub(crate) fn in_domain(
        &self,
        domain: &str,
    ) -> impl Iterator<Item = (&FunctionId, &FunctionPolicy)> {
        self.with_policies(self.by_domain.get(domain))
    }

    /// Returns the functions of a chain in a namespace, in order. They may be in several domains.
    pub(crate) fn in_chain(
        &self,
        chain: &str,
    ) -> impl Iterator<Item = (&FunctionId, &FunctionPolicy)> {
        self.with_policies(self.by_chain.get(chain))
    }

    fn with_policies<'a>(
        &'a self,
        ids: Option<&'a BTreeSet<FunctionId>>,
    ) -> impl Iterator<Item = (&'a FunctionId, &'a FunctionPolicy)> {
        let ids = ids.into_iter().flatten();
        ids.filter_map(|id| Some((id, self.policy(id)?)))
    }
}

impl TouchedChains {
    fn add(&mut self, id: &FunctionId, policy: &FunctionPolicy) {
        self.domains.extend(policy.domain(id));
        self.chains.extend(chain_key(id, policy));
    }
}

type MembersByKey = BTreeMap<String, BTreeSet<FunctionId>>;

/// Returns both indexes with the keys of a function.
fn keyed<'a>(
    by_domain: &'a mut MembersByKey,
    by_chain: &'a mut MembersByKey,
    id: &FunctionId,
    policy: &FunctionPolicy,
) -> impl Iterator<Item = (&'a mut MembersByKey, String)> {
    let domain = policy.domain(id).map(|key| (by_domain, key));
    let chain = chain_key(id, policy).map(|key| (by_chain, key));
    domain.into_iter().chain(chain)
}

/// Chain and namespace: chains of other namespaces are separate.
fn chain_key(id: &FunctionId, policy: &FunctionPolicy) -> Option<String> {
    let chain = policy.chain.as_ref()?;
    Some(format!("{chain}.{}", id.namespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nearpath_types::policy::{ChainDelivery, ChainPlacement};
    use proptest::prelude::*;

    fn any_policy() -> impl Strategy<Value = Option<Arc<FunctionPolicy>>> {
        let chain = prop::option::of(prop::sample::select(vec!["shop", "mail"]));
        let delivery = prop::sample::select(vec![ChainDelivery::Ring, ChainDelivery::Poll]);
        let placement = prop::sample::select(vec![ChainPlacement::Spread, ChainPlacement::Auto]);
        let policy = (chain, delivery, placement).prop_map(|(chain, delivery, placement)| {
            Arc::new(FunctionPolicy {
                chain: chain.map(str::to_owned),
                delivery,
                placement,
                ..FunctionPolicy::default()
            })
        });
        prop::option::weighted(0.8, policy)
    }

    fn any_changes() -> impl Strategy<Value = PolicyChanges> {
        let names = prop::sample::select(vec!["a", "b", "c", "a.dev", "b.dev"]);
        let id = names.prop_map(|name| name.parse::<FunctionId>().unwrap());
        prop::collection::btree_map(id, any_policy(), 0..4)
    }

    /// Applies changes to a plain list of policies.
    fn follow(all: &mut PolicyChanges, changes: PolicyChanges) {
        all.extend(changes);
        all.retain(|_, policy| policy.is_some());
    }

    fn members<'a>(
        of: impl Iterator<Item = (&'a FunctionId, &'a FunctionPolicy)>,
    ) -> Vec<FunctionId> {
        of.map(|(id, _)| id.clone()).collect()
    }

    proptest! {
        #[test]
        fn changes_lead_to_the_index_of_all(batches in prop::collection::vec(any_changes(), 0..20)) {
            let (mut all, mut index) = (PolicyChanges::new(), ChainIndex::default());
            for changes in batches {
                index.apply_changes(&changes);
                follow(&mut all, changes);
                let mut rebuilt = ChainIndex::default();
                rebuilt.apply_changes(&all);
                prop_assert_eq!(&index, &rebuilt);
            }
        }

        #[test]
        fn what_is_not_touched_stays(before in any_changes(), changes in any_changes()) {
            let mut index = ChainIndex::default();
            index.apply_changes(&before);
            let all = |index: &ChainIndex| -> BTreeMap<String, Vec<FunctionId>> {
                let names = ["shop", "mail"].map(|chain| ["openfaas-fn", "dev"].map(|name| format!("{chain}.{name}")));
                names.into_iter().flatten().map(|chain| (chain.clone(), members(index.in_chain(&chain)))).collect()
            };
            let earlier = all(&index);
            let touched = index.apply_changes(&changes);
            for (chain, members) in all(&index) {
                prop_assert!(touched.chains.contains(&chain) || members == earlier[&chain]);
            }
        }
    }

    #[test]
    fn a_lost_change_is_noticed() {
        let policy = FunctionPolicy {
            chain: Some("shop".into()),
            ..FunctionPolicy::default()
        };
        let id: FunctionId = "a".parse().unwrap();
        let all = PolicyChanges::from([(id.clone(), Some(Arc::new(policy)))]);
        let [mut index, rebuilt] = [ChainIndex::default(), ChainIndex::default()];
        index.apply_changes(&all);
        assert_ne!(index, rebuilt, "the removal was lost");
        index.apply_changes(&PolicyChanges::from([(id, None)]));
        assert_eq!(index, rebuilt);
    }
}
