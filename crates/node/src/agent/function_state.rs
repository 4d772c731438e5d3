//! State of one function in the agent.

use std::sync::Arc;
use std::time::Instant;

use nearpath_types::{DesiredFunction, FunctionPolicy, FunctionRoute};

use super::instance_record::InstanceRecord;
use crate::instance::ending::InstanceEnding;
use crate::reconcile::{DesiredInstances, StartBackoff};

/// Desired state of a function, and the results of its starts.
#[derive(Debug, Default)]
pub(super) struct FunctionState {
    /// Desired state; `None` for a removed function that waits for its last instance.
    pub(super) desired: Option<DesiredFunction>,
    policy: Arc<FunctionPolicy>,
    /// Back-off of the desired revision.
    pub(super) backoff: StartBackoff,
    pub(super) start_failure: Option<Arc<str>>,
}

impl FunctionState {
    /// Applies a new desired state. A new revision resets the back-off.
    pub(super) fn apply_desired(&mut self, desired: DesiredFunction) {
        if self.desired.as_ref().map(|old| old.revision) != Some(desired.revision) {
            // Failures of the old revision say nothing about the new one.
            (self.backoff, self.start_failure) = (StartBackoff::default(), None);
        }
        match FunctionPolicy::from_spec(&desired.spec) {
            // The same `Arc` stays, so that comparing snapshots finds no change.
            Ok(policy) if policy == *self.policy => {}
            Ok(policy) => self.policy = Arc::new(policy),
            Err(error) => {
                // The last valid policy stays in use, so that a typing error takes no route away.
                self.start_failure = Some(format!("an invalid setting is ignored: {error}").into())
            }
        }
        self.desired = Some(desired);
    }

    pub(super) fn desired_instances(&self) -> Option<DesiredInstances> {
        self.desired.as_ref().map(|desired| DesiredInstances {
            revision: desired.revision,
            replicas: desired.replicas,
        })
    }

    /// Returns the policy. A removed function keeps its last one for draining instances.
    pub(super) fn policy(&self) -> &FunctionPolicy {
        &self.policy
    }

    /// Records that an instance became ready.
    pub(super) fn record_ready(&mut self, record: &InstanceRecord) {
        if self.runs_desired_revision(record) {
            self.backoff.record_ready();
            self.start_failure = None;
        }
    }

    /// Records that an instance is gone.
    pub(super) fn record_ending(
        &mut self,
        record: &InstanceRecord,
        ending: &InstanceEnding,
        now: Instant,
    ) {
        if !self.runs_desired_revision(record) {
            return;
        }
        let text = match (ending, record.ready) {
            // The node asked for it, so it is no failure.
            (InstanceEnding::Stopped, _) => return,
            (InstanceEnding::Impossible(text), _) => {
                self.backoff.give_up();
                text
            }
            (InstanceEnding::FailedStart(text), _) | (InstanceEnding::Died(text), None) => {
                self.backoff.record_failed_start(record.started, now);
                text
            }
            (InstanceEnding::Died(text), Some(ready)) => {
                self.backoff.record_death(record.started, ready, now);
                text
            }
        };
        self.start_failure = Some(text.as_str().into());
    }

    /// Records a start that failed before an instance existed.
    pub(super) fn record_refusal(&mut self, text: String, now: Instant) {
        self.backoff.record_failed_start(now, now);
        self.start_failure = Some(text.into());
    }

    fn runs_desired_revision(&self, record: &InstanceRecord) -> bool {
        self.desired_instances()
            .is_some_and(|desired| desired.revision == record.revision)
    }

    /// Returns the route for the data plane; `None` for a removed function.
    pub(super) fn function_route<'a>(
        &self,
        records: impl Iterator<Item = &'a InstanceRecord>,
    ) -> Option<FunctionRoute> {
        let desired = self.desired.as_ref()?;
        let instances: Vec<_> = records
            // Nothing answers there any more, though its cleanup may take seconds.
            .filter(|record| !record.exited)
            .map(InstanceRecord::routed_instance)
            .collect();
        let any_ready = instances
            .iter()
            .any(|one| one.state == nearpath_types::InstanceState::Ready);
        // With a ready instance callers are served, and need no explanation.
        let start_failure = self
            .start_failure
            .clone()
            .filter(|_| desired.replicas > 0 && !any_ready);
        let (id, policy) = (desired.spec.id(), self.policy.clone());
        Some(FunctionRoute {
            id,
            policy,
            replicas: desired.replicas,
            instances,
            start_failure,
        })
    }
}
