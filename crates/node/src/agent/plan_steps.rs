//! Plans of functions, and the steps that carry them out.

use std::time::Instant;

use nearpath_types::instance_label::label_instance;
use nearpath_types::{FunctionId, InstanceId, InstanceState};

use super::NodeAgent;
use super::function_state::FunctionState;
use super::instance_record::InstanceRecord;
use super::withdrawal::WithdrawalPurpose;
use crate::reconcile::{self, DesiredInstances, ReconcileAction};

/// Instances to withdraw once the publication shows that they are not ready.
pub(super) type Withdrawals = Vec<(InstanceId, WithdrawalPurpose)>;

impl NodeAgent {
    /// Plans the next steps of a function, and carries them out. Returns the time of the next plan
    /// without other changes.
    pub(super) fn reconcile_function(
        &mut self,
        id: &FunctionId,
        now: Instant,
        withdrawn: &mut Withdrawals,
    ) -> Option<Instant> {
        let function = self.functions.get(id)?;
        let frozen = self.frozen_instances(function, now);
        let desired = self.desired_instances(function, frozen.map_or(0, |(_, count)| count));
        let instances = self.instances.instances_of(id);
        let views: Vec<_> = instances.map(InstanceRecord::reconcile_view).collect();
        let plan = reconcile::plan(desired, &views, &function.backoff, now);
        let mut refused = false;
        for action in plan.actions {
            match action {
                ReconcileAction::Start(count) => {
                    refused = !(0..count).all(|_| self.start_instance(id, now))
                }
                ReconcileAction::Freeze(id) => {
                    self.set_state(id, InstanceState::Frozen);
                    withdrawn.push((id, WithdrawalPurpose::Freeze));
                }
                ReconcileAction::Thaw(id) => self.thaw_instance(id),
                ReconcileAction::Withdraw(id) => withdrawn.push((id, self.begin_drain(id))),
            }
        }
        match refused {
            // A refusal changed the back-off after planning.
            true => self.functions.get(id)?.backoff.retry_at(),
            false => plan.retry_at.or(frozen.map(|(until, _)| until)),
        }
    }

    /// Returns how many instances this machine keeps frozen for a sleeping function, and how long.
    fn frozen_instances(&self, function: &FunctionState, now: Instant) -> Option<(Instant, u32)> {
        let machine = &self.factory.context.machine;
        let frozen = function.frozen_instances();
        frozen.filter(|(until, _)| *until > now && machine.can_freeze())
    }

    fn desired_instances(&self, function: &FunctionState, frozen: u32) -> Option<DesiredInstances> {
        let desired = function.desired_instances()?;
        let desired = DesiredInstances { frozen, ..desired };
        // While the node stops nothing is desired, so that plans only withdraw.
        self.stopping.is_none().then_some(desired)
    }

    /// Changes the state of an instance that is to end. Returns the purpose of its withdrawal.
    fn begin_drain(&mut self, id: InstanceId) -> WithdrawalPurpose {
        let before = self.set_state(id, InstanceState::Draining);
        // A frozen one may still be ending its calls.
        let called = [InstanceState::Ready, InstanceState::Frozen].map(Some);
        WithdrawalPurpose::Stop {
            may_have_calls: called.contains(&before),
        }
    }

    /// Starts an instance; returns whether its task was spawned.
    fn start_instance(&mut self, id: &FunctionId, now: Instant) -> bool {
        let addresses = self.addresses();
        let Some(function) = self.functions.get_mut(id) else {
            return false;
        };
        let (Some(desired), Some(policy)) = (&function.desired, function.policy()) else {
            return false;
        };
        self.factory
            .context
            .artifacts
            // Marked before the start, or a collection could remove the copy in between.
            .add_needed((id.clone(), desired.revision));
        match self
            .factory
            .start_instance(desired, policy, &addresses, now)
        {
            Ok(record) => {
                let instance = label_instance(self.member_name.as_ref(), record.id);
                tracing::debug!(function = %id, instance, revision = %record.revision, "instance starts");
                self.instances.insert(record);
                true
            }
            Err(text) => {
                tracing::warn!(function = %id, "instance could not be started: {text}");
                self.metrics.count_start(false);
                function.record_refusal(text, now);
                false
            }
        }
    }
}
