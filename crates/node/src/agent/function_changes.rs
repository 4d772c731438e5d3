//! Effects of changed functions besides their instances: chains, callers, logs and copies.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::{mem, ptr};

use nearpath_types::{DesiredState, FunctionId, Revision};
use tokio::sync::watch;

use super::NodeAgent;
use super::function_state::FunctionState;
use crate::chains::PolicyChanges;

impl NodeAgent {
    /// Applies what differs from the last desired state, however many were sent in between.
    pub(super) fn apply_desired(&mut self, desired: &mut watch::Receiver<DesiredState>) {
        let desired = desired.borrow_and_update().clone();
        let is_first = self.applied.is_none();
        let before = self.applied.take().unwrap_or_default();
        let now = tokio::time::Instant::now().into_std();
        for change in desired.functions.changes_since(&before.functions) {
            let function = self.functions.entry(change.id.clone()).or_default();
            let policy = function.shared_policy();
            match change.after {
                Some(desired) => {
                    let node = self.member_name.as_ref();
                    function.apply_desired(Arc::clone(desired), node, now)
                }
                None => function.desired = None,
            }
            // An equal policy stays the same value.
            if policy.as_ref().map(Arc::as_ptr) != function.policy().map(ptr::from_ref) {
                self.changed_policies.insert(change.id.clone());
            }
            let wanted = function.policy().filter(|_| change.after.is_some());
            self.egress_placements.set_function(change.id, wanted);
            self.changed.insert(change.id.clone());
        }
        self.share_egress(&desired);
        if before.addresses.is_empty()
            && let Some(any) = desired.addresses.first()
        {
            self.factory.context.machine.set_virtual_network(**any);
        }
        self.applied = Some(desired);
        if is_first {
            let logs = &self.factory.context.logs;
            logs.remove_others(self.functions.keys());
        }
        // Before a start: an instance joins its chain then.
        self.apply_policies();
    }

    /// Gives the connection pool the numbers of nodes that share its limits, before instances start.
    fn share_egress(&mut self, desired: &DesiredState) {
        self.egress_placements.set_nodes(&desired.nodes);
        let counts = self.egress_placements.take_changes();
        if !counts.is_empty() {
            self.factory.context.machine.set_egress_nodes(counts);
        }
    }

    /// Forgets a removed function with its last instance: until then, its end is still reported. One
    /// that has moved to another node leaves its chain then.
    pub(super) fn drop_if_gone(&mut self, id: &FunctionId) {
        let Some(function) = self.functions.get(id) else {
            return;
        };
        if self.instances.has_instances(id) {
            return;
        }
        if !function.runs_here() {
            self.changed_policies.insert(id.clone());
        }
        if function.desired.is_none() {
            self.functions.remove(id);
            self.factory.context.logs.remove_function(id);
            self.changed_policies.insert(id.clone());
        }
    }

    /// Applies changed policies to the chains and to the callers over QUIC and TLS. Both know the functions
    /// of this node. Chains also know the subscribers on other nodes.
    pub(super) fn apply_policies(&mut self) {
        let policy_of = |id: FunctionId| {
            let is_local = |function: &&FunctionState| {
                function.runs_here() || self.instances.has_instances(&id)
            };
            let function = self.functions.get(&id).filter(is_local);
            let policy = function.and_then(FunctionState::shared_policy);
            (id, policy)
        };
        // A function that moved away is in both until its last instance ends: a withdrawn one gets no events.
        let remote_policy_of = |id: &FunctionId| {
            let function = self.functions.get(id);
            let function = function.filter(|function| !function.runs_here());
            (id.clone(), function.and_then(FunctionState::shared_policy))
        };
        let changed = mem::take(&mut self.changed_policies);
        if changed.is_empty() {
            return;
        }
        let remote: PolicyChanges = changed.iter().map(remote_policy_of).collect();
        let changes: PolicyChanges = changed.into_iter().map(policy_of).collect();
        let identities = &self.factory.context.identities;
        identities.update_callers(&mut self.callers, &changes);
        self.factory.domains.apply_changes(&changes);
        self.factory.domains.apply_remote_changes(&remote);
    }

    /// Removes copies that neither a desired function nor a living instance needs, when that has
    /// changed.
    pub(super) fn collect_artifacts(&mut self, changed: &BTreeSet<FunctionId>) {
        let artifacts = self.factory.context.artifacts.clone();
        let mut has_changed = false;
        for id in changed {
            let needed = self.needed_revisions(id);
            let before = match needed.is_empty() {
                true => self.needed.remove(id),
                false => self.needed.insert(id.clone(), needed.clone()),
            };
            let before = before.unwrap_or_default();
            if before != needed {
                // An addition makes no copy unneeded, and most changes add.
                has_changed |= !before.is_subset(&needed);
                artifacts.set_needed(id, needed);
            }
        }
        // Before the first desired state every copy would look unneeded.
        let is_first = self.applied.is_some()
            && !mem::replace(&mut self.has_collected, self.applied.is_some());
        if !is_first && !has_changed {
            return;
        }
        tokio::task::spawn_blocking(move || {
            let collected = match is_first {
                true => artifacts.collect_garbage(),
                false => artifacts.collect_stale(),
            };
            if let Err(error) = collected {
                tracing::warn!(%error, "copies of removed functions could not be removed; the next change retries");
            }
        });
    }

    fn needed_revisions(&self, id: &FunctionId) -> BTreeSet<Revision> {
        let function = self.functions.get(id);
        let desired = function
            // One that runs elsewhere has no copy here, and a node knows thousands of them.
            .filter(|function| function.runs_here())
            .and_then(FunctionState::desired_instances);
        let living = self
            .instances
            .instances_of(id)
            .map(|record| record.revision);
        living
            .chain(desired.map(|desired| desired.revision))
            .collect()
    }
}
