//! The autoscalers, for all threads.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use nearpath_node::Node;
use nearpath_types::{AutoscalingStatus, DesiredState, FunctionId, NodeName};
use tokio::sync::Notify;

use super::function_scaler::{PollPace, ReplicaChange};
use super::load_counts::LoadCounts;
use super::scale_state::{PollTarget, ScaleState};

/// Autoscalers of one node. All desired states of the node pass here.
pub(crate) struct AutoscalerHandle {
    state: Mutex<ScaleState>,
    node: Arc<Node>,
    /// Notifies the driver: functions, their replicas or their requests have changed.
    changed: Arc<Notify>,
}

impl AutoscalerHandle {
    /// Creates the autoscalers of a node. `own_name` is its name among others.
    pub(crate) fn new(node: Arc<Node>, own_name: Option<NodeName>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(ScaleState::new(own_name)),
            node,
            changed: Arc::new(Notify::new()),
        })
    }

    /// Applies the controller's state, with the replicas of the autoscalers in it.
    pub(crate) fn apply_desired(&self, stored: DesiredState) {
        let now = Instant::now();
        let mut state = self.lock_state();
        state.apply_stored(stored, now);
        self.apply_to_node(&state);
        self.changed.notify_one();
    }

    /// Wakes an autoscaled function for a call; returns false for any other function.
    pub(crate) fn wake(&self, id: &FunctionId) -> bool {
        let now = Instant::now();
        let mut state = self.lock_state();
        let Some(change) = state.wake(id, now) else {
            return false;
        };
        if let Some(change) = change {
            log_change(id, &change);
            self.apply_to_node(&state);
            self.changed.notify_one();
        }
        true
    }

    /// Makes a function's autoscaler go on from a number of replicas that a user has set.
    pub(crate) fn continue_from(&self, id: &FunctionId, replicas: u32) {
        let now = Instant::now();
        let mut state = self.lock_state();
        if state.continue_from(id, now, replicas) {
            self.apply_to_node(&state);
            self.changed.notify_one();
        }
    }

    /// Returns the state of a function's autoscaler.
    pub(crate) fn status(&self, id: &FunctionId) -> Option<AutoscalingStatus> {
        self.lock_state().status(id, Instant::now())
    }

    /// Returns the states of all autoscalers.
    pub(super) fn all_status(&self) -> Vec<(FunctionId, AutoscalingStatus)> {
        self.lock_state().all_status(Instant::now())
    }

    /// Returns the autoscaled functions that are awake.
    pub(super) fn poll_targets(&self) -> Vec<PollTarget> {
        self.lock_state().poll_targets(Instant::now())
    }

    /// Takes the counters of a poll, applies changed replicas, and returns when to poll again.
    pub(super) fn observe(&self, counted: &[(FunctionId, LoadCounts)]) -> PollPace {
        let now = Instant::now();
        let mut state = self.lock_state();
        let mut has_changes = false;
        for (id, counts) in counted {
            if let Some(change) = state.observe(id, now, counts) {
                log_change(id, &change);
                has_changes = true;
            }
        }
        if has_changes {
            self.apply_to_node(&state);
        }
        state.pace(now)
    }

    /// Returns the notification of changes, and of requests that it is armed for.
    pub(super) fn changed(&self) -> &Arc<Notify> {
        &self.changed
    }

    /// Applies the state. Under the lock, so that the node gets states in their order.
    fn apply_to_node(&self, state: &ScaleState) {
        self.node.apply_desired(state.desired());
    }

    fn lock_state(&self) -> MutexGuard<'_, ScaleState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn log_change(id: &FunctionId, change: &ReplicaChange) {
    let ReplicaChange { from, to, reason } = change;
    tracing::info!(function = %id, from, to, %reason, "autoscaler: replicas changed");
}
