//! Failed instances of a request, and the pause before the next round.

use std::time::{Duration, Instant};

use nearpath_types::{PlatformError, Reason, policy};
use tokio::sync::watch;

use super::endpoint_slot::{self, EndpointSlot};
use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::function::AdmissionPermit;

/// Pause after no slot was free: the gate still counts the failed instance and would admit the
/// request at once.
const PICK_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// First pause after all instances failed. Doubles up to [`MAX_DOUBLINGS`] times.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_DOUBLINGS: u32 = 5;

/// Instances that failed with one request, and the pause before the next try.
#[derive(Default)]
pub(super) struct RetryState {
    tried_serials: Vec<u64>,
    rounds: u32,
    first_failure: Option<Instant>,
    wait: Option<RetryWait>,
}

/// Cause for which the next pick waits.
enum RetryWait {
    /// An instance failed.
    Failed {
        why: String,
        limit: Instant,
        changes: watch::Receiver<u64>,
    },
    /// No instance had a free slot.
    NoRoom,
}

impl RetryState {
    /// Returns whether [`RetryState::wait_before_retry`] has something to wait for.
    pub(super) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Notes the failure of `slot`. Returns its permit, or `None` if the instance was withdrawn.
    pub(super) fn note_failure(
        &mut self,
        call: &GatewayCall,
        slot: EndpointSlot,
        why: String,
    ) -> Option<AdmissionPermit> {
        let first = *self.first_failure.get_or_insert_with(Instant::now);
        self.tried_serials.push(slot.endpoint.target.serial);
        let limit = (first + call.route.policy.cold_timeout).min(call.deadlines.deadline());
        // Subscribed before the slot is given up: a snapshot in between must not be missed.
        self.wait = Some(RetryWait::Failed {
            why,
            limit,
            changes: call.worker.table.subscribe(),
        });
        slot.give_up()
    }

    /// Takes a slot at an instance that has not failed.
    ///
    /// # Errors
    /// Returns the permit if the last instance is gone or none has a free slot.
    pub(super) fn pick_slot(
        &mut self,
        call: &GatewayCall,
        permit: AdmissionPermit,
    ) -> Result<EndpointSlot, AdmissionPermit> {
        let picked = endpoint_slot::pick_slot(
            &call.route,
            permit,
            &self.tried_serials,
            call.worker.next_random(),
        );
        self.wait = picked.is_err().then_some(RetryWait::NoRoom);
        picked
    }

    /// Waits until the next pick can succeed. After all instances failed, waits for a new
    /// snapshot or a short pause, for at most the function's cold-start timeout.
    ///
    /// # Errors
    /// `connect_failed` when the time is over.
    pub(super) async fn wait_before_retry(
        &mut self,
        call: &mut GatewayCall,
    ) -> Result<(), PlatformError> {
        match self.wait.take() {
            None => Ok(()),
            Some(RetryWait::NoRoom) => self.wait_for_room(call).await,
            Some(RetryWait::Failed {
                why,
                limit,
                changes,
            }) => self.wait_for_instance(call, &why, limit, changes).await,
        }
    }

    async fn wait_for_room(&self, call: &GatewayCall) -> Result<(), PlatformError> {
        if Instant::now() >= call.deadlines.deadline() {
            return Err(unreachable_error(call, "the others have no room"));
        }
        // Without a failed instance, the gate counts right, and a retry at once is enough.
        if !self.tried_serials.is_empty() {
            tokio::time::sleep(PICK_RETRY_INTERVAL).await;
        }
        // The task that frees the slot may run on this very thread.
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn wait_for_instance(
        &mut self,
        call: &mut GatewayCall,
        why: &str,
        limit: Instant,
        mut changes: watch::Receiver<u64>,
    ) -> Result<(), PlatformError> {
        call.route = call.function.route();
        if !endpoint_slot::all_gated_tried(&call.function, &self.tried_serials)
            && self.tried_serials.len() < call.worker.max_attempts
        {
            return Ok(());
        }
        let delay = FIRST_RETRY_DELAY * (1 << self.rounds.min(MAX_DOUBLINGS));
        if Instant::now() + delay >= limit {
            return Err(unreachable_error(call, why));
        }
        // After either, the next round begins.
        let _ = tokio::time::timeout(delay, changes.changed()).await;
        self.rounds += 1;
        // A new round tries every instance again: a failure may have been temporary.
        self.tried_serials.clear();
        call.route = call.function.route();
        // The limit for the first byte counts from the next attempt.
        call.admitted_at = Instant::now();
        Ok(())
    }
}

fn unreachable_error(call: &GatewayCall, why: &str) -> PlatformError {
    let message = format!(
        "no instance of {} could be reached: {why}",
        call.function.name
    );
    PlatformError::new(COMPONENT, Reason::ConnectFailed, message).governed_by(policy::COLD_TIMEOUT)
}
