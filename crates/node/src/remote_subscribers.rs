//! Functions that subscribe to events and run only on other nodes. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nearpath_types::{FunctionId, FunctionPolicy};

use crate::chains::PolicyChanges;

/// Policies of these functions.
#[derive(Debug, Default)]
pub(crate) struct RemoteSubscribers(BTreeMap<FunctionId, Arc<FunctionPolicy>>);

impl RemoteSubscribers {
    /// Applies new policies; `None` for a function that is gone or runs here. Returns the domains whose
    /// remote subscribers may differ.
    pub(crate) fn apply_changes(&mut self, changes: &PolicyChanges) -> BTreeSet<String> {
        let mut touched = BTreeSet::new();
        let subscribes = |policy: &&Arc<FunctionPolicy>| !policy.subscribes.is_empty();
        for (id, policy) in changes {
            let before = match policy.as_ref().filter(subscribes) {
                Some(policy) => {
                    touched.extend(policy.domain(id));
                    self.0.insert(id.clone(), policy.clone())
                }
                None => self.0.remove(id),
            };
            touched.extend(before.and_then(|policy| policy.domain(id)));
        }
        touched
    }

    /// Returns the policies of the subscribers in a domain.
    pub(crate) fn in_domain(&self, domain: &str) -> Vec<&FunctionPolicy> {
        let is_member = |(id, policy): &(&FunctionId, &Arc<FunctionPolicy>)| {
            policy.domain(id).as_deref() == Some(domain)
        };
        let members = self.0.iter().filter(is_member);
        members.map(|(_, policy)| &**policy).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_touches_the_domain_before_and_after() {
        let policy = |chain: &str, filter: &str| FunctionPolicy {
            chain: Some(chain.into()),
            subscribes: vec![filter.into()],
            ..FunctionPolicy::default()
        };
        let id: FunctionId = "mail".parse().unwrap();
        let [shop, stock] = ["shop", "stock"].map(|chain| policy(chain, "#").domain(&id).unwrap());
        let mut subscribers = RemoteSubscribers::default();
        let mut apply = |policy: Option<FunctionPolicy>| {
            let changes = PolicyChanges::from([(id.clone(), policy.map(Arc::new))]);
            let touched = subscribers.apply_changes(&changes);
            let counts = [&shop, &stock].map(|domain| subscribers.in_domain(domain).len());
            (touched.into_iter().collect::<Vec<_>>(), counts)
        };
        assert_eq!(
            apply(Some(policy("shop", "#"))),
            (vec![shop.clone()], [1, 0])
        );
        let both = vec![shop.clone(), stock.clone()];
        assert_eq!(apply(Some(policy("stock", "#"))), (both, [0, 1]));
        assert_eq!(apply(None), (vec![stock.clone()], [0, 0]));
        assert_eq!(apply(Some(FunctionPolicy::default())), (vec![], [0, 0]));
    }
}
