//! Desired state of the controller, and the replicas of autoscaled functions in its place.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::policy::ScaleSettings;
use nearpath_types::{
    AutoscalingStatus, DesiredFunction, DesiredState, FunctionId, FunctionPolicy, NodeName,
};

use super::function_scaler::{FunctionScaler, PollPace, ReplicaChange};
use super::load_counts::LoadCounts;

/// A function that is awake, and what a poll of it has to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PollTarget {
    pub(super) id: FunctionId,
    /// Settings of its autoscaler.
    pub(super) settings: ScaleSettings,
    /// Other functions declare that they call it.
    pub(super) has_callers: bool,
}

/// All autoscalers of a node, and the state that they change.
#[derive(Debug)]
pub(super) struct ScaleState {
    /// Name of this node among others.
    own_name: Option<NodeName>,
    stored: DesiredState,
    /// The same with the replicas of the autoscalers. Changes renew the entries that they concern, so
    /// a change costs what it changes.
    desired: DesiredState,
    scalers: BTreeMap<FunctionId, FunctionScaler>,
    /// Functions by callee that declare a call of it.
    callers: BTreeMap<FunctionId, BTreeSet<FunctionId>>,
}

impl ScaleState {
    /// Begins without functions.
    pub(super) fn new(own_name: Option<NodeName>) -> Self {
        Self {
            own_name,
            stored: DesiredState::default(),
            desired: DesiredState::default(),
            scalers: BTreeMap::new(),
            callers: BTreeMap::new(),
        }
    }

    /// Takes over the controller's state.
    pub(super) fn apply_stored(&mut self, stored: DesiredState, now: Instant) {
        let before = std::mem::replace(&mut self.stored, stored);
        let after = self.stored.functions.clone();
        for change in after.changes_since(&before.functions) {
            if let Some(old) = change.before {
                self.remove_caller(change.id, &policy_of(old));
            }
            match change.after {
                Some(function) => self.put_function(change.id, function, now),
                None => drop(self.scalers.remove(change.id)),
            }
            self.renew_desired(change.id, now);
        }
        self.desired = DesiredState {
            functions: std::mem::take(&mut self.desired.functions),
            ..self.stored.clone()
        };
    }

    /// Returns the state for the node.
    pub(super) fn desired(&self) -> DesiredState {
        self.desired.clone()
    }

    /// Wakes a function for a call. Returns `None` for one that is not autoscaled, otherwise its
    /// change, if there is one.
    pub(super) fn wake(&mut self, id: &FunctionId, now: Instant) -> Option<Option<ReplicaChange>> {
        let change = self.scalers.get_mut(id)?.wake(now);
        self.renew_desired(id, now);
        Some(change)
    }

    /// Makes an autoscaler go on from a number of replicas. Returns whether there is one.
    pub(super) fn continue_from(&mut self, id: &FunctionId, now: Instant, replicas: u32) -> bool {
        let scaler = self.scalers.get_mut(id);
        let is_autoscaled = scaler
            .map(|scaler| scaler.continue_from(now, replicas))
            .is_some();
        self.renew_desired(id, now);
        is_autoscaled
    }

    /// Takes the counters of a poll.
    pub(super) fn observe(
        &mut self,
        id: &FunctionId,
        now: Instant,
        counts: &LoadCounts,
    ) -> Option<ReplicaChange> {
        let change = self.scalers.get_mut(id)?.observe(now, counts)?;
        self.renew_desired(id, now);
        Some(change)
    }

    /// Returns the autoscaled functions that are awake.
    pub(super) fn poll_targets(&self, now: Instant) -> Vec<PollTarget> {
        let awake = self.scalers.iter().filter(|(_, one)| one.replicas(now) > 0);
        awake
            .map(|(id, scaler)| PollTarget {
                id: id.clone(),
                settings: *scaler.settings(),
                has_callers: self.callers.contains_key(id),
            })
            .collect()
    }

    /// Returns how often to poll functions.
    pub(super) fn pace(&self, now: Instant) -> PollPace {
        let paces = self.scalers.iter().map(|(id, scaler)| {
            let mut callers = self.callers.get(id).into_iter().flatten();
            let has_callers = callers.any(|caller| self.replicas(caller, now) > 0);
            scaler.pace(now, has_callers)
        });
        paces.max().unwrap_or(PollPace::Parked)
    }

    /// Returns the state of a function's autoscaler.
    pub(super) fn status(&self, id: &FunctionId, now: Instant) -> Option<AutoscalingStatus> {
        Some(self.scalers.get(id)?.status(now))
    }

    /// Returns the states of all autoscalers.
    pub(super) fn all_status(&self, now: Instant) -> Vec<(FunctionId, AutoscalingStatus)> {
        let all = self.scalers.iter();
        all.map(|(id, scaler)| (id.clone(), scaler.status(now)))
            .collect()
    }

    fn replicas(&self, id: &FunctionId, now: Instant) -> u32 {
        match self.scalers.get(id) {
            Some(scaler) => scaler.replicas(now),
            None => self.stored.functions.get(id).map_or(0, |one| one.replicas),
        }
    }

    fn runs_here(&self, policy: &FunctionPolicy) -> bool {
        self.own_name.as_ref().is_none_or(|own| policy.runs_on(own))
    }

    fn put_function(&mut self, id: &FunctionId, function: &DesiredFunction, now: Instant) {
        let policy = policy_of(function);
        self.add_caller(id, &policy);
        let settings = scale_settings(function, &policy).filter(|_| self.runs_here(&policy));
        match (settings, self.scalers.get_mut(id)) {
            (Some(settings), Some(scaler)) => scaler.update(settings, function, now),
            (Some(settings), None) => {
                let scaler = FunctionScaler::new(settings, function, now);
                self.scalers.insert(id.clone(), scaler);
            }
            (None, _) => drop(self.scalers.remove(id)),
        }
    }

    fn renew_desired(&mut self, id: &FunctionId, now: Instant) {
        let Some(function) = self.stored.functions.get(id) else {
            self.desired.functions.remove(id);
            return;
        };
        let replicas = self.replicas(id, now);
        let wanted = self.desired.functions.get(id);
        // Entries without a change of the replicas are shared with the controller.
        let next = match function.replicas == replicas {
            true => Arc::clone(function),
            false => Arc::new(DesiredFunction {
                replicas,
                ..DesiredFunction::clone(function)
            }),
        };
        if wanted != Some(&next) {
            self.desired.functions.insert(id.clone(), next);
        }
    }

    fn add_caller(&mut self, id: &FunctionId, policy: &FunctionPolicy) {
        for callee in &policy.calls {
            let callers = self.callers.entry(callee.clone()).or_default();
            callers.insert(id.clone());
        }
    }

    fn remove_caller(&mut self, id: &FunctionId, policy: &FunctionPolicy) {
        for callee in &policy.calls {
            if let Some(callers) = self.callers.get_mut(callee) {
                callers.remove(id);
                if callers.is_empty() {
                    self.callers.remove(callee);
                }
            }
        }
    }
}

fn policy_of(function: &DesiredFunction) -> FunctionPolicy {
    FunctionPolicy::from_spec(&function.spec).unwrap_or_default()
}

/// Returns the settings of an autoscaled function.
fn scale_settings(function: &DesiredFunction, policy: &FunctionPolicy) -> Option<ScaleSettings> {
    let settings = ScaleSettings::for_autoscaling(&function.spec.labels)?;
    Some(ScaleSettings {
        // An event wakes no function: one that sleeps would miss its events.
        scale_to_zero: settings.scale_to_zero && policy.subscribes.is_empty(),
        ..settings
    })
}

#[cfg(test)]
mod tests;
