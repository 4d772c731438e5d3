//! State of one function in the agent.

use std::sync::Arc;
use std::time::Instant;

use nearpath_types::policy::CallTransport;
use nearpath_types::{
    DesiredFunction, FunctionPolicy, FunctionRoute, FunctionSpec, InstanceId, NodeName,
    StartFailure, StartFailureCause, VirtualAddress,
};

use super::instance_record::InstanceRecord;
use crate::instance::ending::InstanceEnding;
use crate::reconcile::{DesiredInstances, StartBackoff};

/// Desired state of a function, and the results of its starts.
#[derive(Debug, Default)]
pub(super) struct FunctionState {
    /// Desired state; `None` for a removed function that waits for its last instance.
    pub(super) desired: Option<Arc<DesiredFunction>>,
    /// Last valid policy; `None` before the first one.
    policy: Option<Arc<FunctionPolicy>>,
    /// Back-off of the desired revision.
    pub(super) backoff: StartBackoff,
    /// Failure of the desired revision, until an instance is ready.
    failure: Option<FailureRecord>,
    /// Last failure of the desired revision, for its whole life.
    last_failure: Option<String>,
    /// Its policy names other nodes only, so this one starts no instances.
    runs_elsewhere: bool,
    /// Time since which no replicas are desired.
    asleep_since: Option<Instant>,
}

/// Failure of a revision.
#[derive(Debug, Clone)]
struct FailureRecord {
    cause: StartFailureCause,
    instance: Option<InstanceId>,
    /// Text for the administrator.
    text: String,
}

impl FunctionState {
    /// Applies a new desired state. A new revision resets the back-off. `node` is this node, if there
    /// are others.
    pub(super) fn apply_desired(
        &mut self,
        desired: Arc<DesiredFunction>,
        node: Option<&NodeName>,
        now: Instant,
    ) {
        if self.desired.as_ref().map(|old| old.revision) != Some(desired.revision) {
            // Failures of the old revision say nothing about the new one.
            (self.backoff, self.failure, self.last_failure) = Default::default();
            // A revision has one spec: its failure is recorded once.
            self.apply_policy(&desired.spec);
        }
        let policy = self.policy.as_ref();
        self.runs_elsewhere = node
            .zip(policy)
            .is_some_and(|(node, policy)| !policy.runs_on(node));
        self.asleep_since = match desired.replicas {
            // A later change of a sleeping function does not prolong its time.
            0 => self.asleep_since.or(Some(now)),
            _ => None,
        };
        self.desired = Some(desired);
    }

    /// Returns whether instances of the function may run on this node.
    pub(super) fn runs_here(&self) -> bool {
        !self.runs_elsewhere
    }

    fn apply_policy(&mut self, spec: &FunctionSpec) {
        let text = match (FunctionPolicy::from_spec(spec), &self.policy) {
            // The same `Arc` stays, so that comparing snapshots finds no change.
            (Ok(policy), Some(known)) if policy == **known => return,
            (Ok(policy), _) => {
                self.policy = Some(Arc::new(policy));
                return;
            }
            // The last valid policy stays in use, so that a typing error takes no route away.
            (Err(error), Some(_)) => {
                format!("an invalid setting is ignored, the last valid ones stay: {error}")
            }
            (Err(error), None) => {
                // Defaults would start it outside its chain, with settings that its author did not
                // declare.
                self.backoff.give_up();
                format!("a setting is invalid, so nothing is started: {error}")
            }
        };
        self.record_failure(StartFailureCause::NotDeployable, None, &text);
    }

    /// Returns the desired instances, none of them frozen.
    pub(super) fn desired_instances(&self) -> Option<DesiredInstances> {
        self.desired.as_ref().map(|desired| DesiredInstances {
            revision: desired.revision,
            // Those of a function that has moved away drain, as after a scale to zero.
            replicas: if self.runs_here() {
                desired.replicas
            } else {
                0
            },
            frozen: 0,
        })
    }

    /// Returns the end of the time for which instances of the sleeping function are kept frozen, and their
    /// number: as many as a wake-up starts. `None` if it does not sleep here, or keeps none.
    pub(super) fn frozen_instances(&self) -> Option<(Instant, u32)> {
        let policy = self.policy.as_ref()?;
        // Callers with a transport of their own have connections that no snapshot ends.
        let is_plain = matches!(policy.transport, CallTransport::Auto | CallTransport::Tcp);
        let can_freeze = self.runs_here() && is_plain && !policy.frozen.is_zero();
        let until = self.asleep_since?.checked_add(policy.frozen)?;
        can_freeze.then_some((until, policy.scale_min))
    }

    /// Returns the last valid policy. A removed function keeps it for draining instances.
    pub(super) fn policy(&self) -> Option<&FunctionPolicy> {
        self.policy.as_deref()
    }

    /// Returns the same, to be kept.
    pub(super) fn shared_policy(&self) -> Option<Arc<FunctionPolicy>> {
        self.policy.clone()
    }

    /// Records that an instance became ready.
    pub(super) fn record_ready(&mut self, record: &InstanceRecord) {
        if self.runs_desired_revision(record) {
            self.backoff.record_ready();
            self.failure = None;
        }
    }

    /// Returns the failure of the desired revision for the administrator, until an instance is
    /// ready.
    pub(super) fn start_failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failure| &*failure.text)
    }

    /// Returns the last failure of the desired revision for the administrator.
    pub(super) fn last_failure(&self) -> Option<&str> {
        self.last_failure.as_deref()
    }

    fn record_failure(
        &mut self,
        cause: StartFailureCause,
        instance: Option<InstanceId>,
        text: &str,
    ) {
        let of_instance = instance.map(|id| format!("{id}: ")).unwrap_or_default();
        self.last_failure = Some(format!("{of_instance}{text}"));
        self.failure = Some(FailureRecord {
            cause,
            instance,
            text: text.to_owned(),
        });
    }

    /// Records what is wrong with an instance that goes on: no reason to refuse calls or to wait
    /// with the next start.
    pub(super) fn record_remark(&mut self, record: &InstanceRecord, text: &str) {
        if self.runs_desired_revision(record) {
            self.last_failure = Some(format!("{}: {text}", record.id));
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
        // Without a report the node asked for the end, so it is no failure.
        let Some(report) = ending.report() else {
            return;
        };
        match (ending, record.ready) {
            (InstanceEnding::Impossible(_), _) => self.backoff.give_up(),
            (InstanceEnding::Died(_), Some(ready)) => {
                self.backoff.record_death(record.started, ready, now)
            }
            _ => self.backoff.record_failed_start(record.started, now),
        }
        self.record_failure(report.cause, Some(record.id), &report.text);
    }

    /// Records a start that failed before an instance existed.
    pub(super) fn record_refusal(&mut self, text: String, now: Instant) {
        self.backoff.record_failed_start(now, now);
        self.record_failure(StartFailureCause::NodeRefused, None, &text);
    }

    fn runs_desired_revision(&self, record: &InstanceRecord) -> bool {
        self.desired_instances()
            .is_some_and(|desired| desired.revision == record.revision)
    }

    /// Returns the route for the data plane; `None` for a removed function.
    pub(super) fn function_route<'a>(
        &self,
        records: impl Iterator<Item = &'a InstanceRecord>,
        address: Option<VirtualAddress>,
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
            .failure
            .as_ref()
            .filter(|_| self.runs_here() && desired.replicas > 0 && !any_ready)
            .map(|failure| StartFailure {
                cause: failure.cause,
                instance: failure.instance,
                retry_after: self.backoff.failing_interval(),
            });
        let (id, policy) = (desired.spec.id(), self.policy.clone().unwrap_or_default());
        Some(FunctionRoute {
            id,
            address,
            policy,
            replicas: desired.replicas,
            instances,
            runs_here: self.runs_here(),
            remotes: Vec::new(),
            start_failure,
        })
    }
}
