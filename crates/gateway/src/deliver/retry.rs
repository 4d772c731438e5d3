//! Which instances failed with a request, and how long it pauses before the next round.

use std::time::{Duration, Instant};

use nearpath_types::{PlatformError, Reason, policy};
use tokio::sync::watch;

use super::endpoint_slot::{self, EndpointSlot};
use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::function::AdmissionPermit;

/// Pause after a pick found no room: the gate counts on the instance that failed, and would let the request in again at once.
const PICK_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// First pause after all instances failed; it doubles [`MAX_DOUBLINGS`] times.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_DOUBLINGS: u32 = 5;

/// The instances that failed with one request.
#[derive(Default)]
pub(super) struct RetryState {
    tried_serials: Vec<u64>,
    rounds: u32,
    first_failure: Option<Instant>,
    wait: Option<RetryWait>,
}

/// The reason for which the next pick waits.
enum RetryWait {
    /// An instance failed.
    Failed {
        why: String,
        limit: Instant,
        changes: watch::Receiver<u64>,
    },
    /// No instance had room.
    NoRoom,
}

impl RetryState {
    /// Returns whether [`RetryState::wait`] has something to wait for.
    pub(super) fn is_waiting(&self) -> bool {
        self.wait.is_some()
    }

    /// Notes that `place` failed. Returns its permit, or `NoConnection` if the instance was withdrawn and the permit with it.
    pub(super) fn note_failure(
        &mut self,
        call: &GatewayCall,
        slot: EndpointSlot,
        why: String,
    ) -> Option<AdmissionPermit> {
        let first = *self.first_failure.get_or_insert_with(Instant::now);
        self.tried_serials.push(slot.endpoint.serial);
        let limit = (first + call.route.policy.cold_timeout).min(call.deadlines.deadline());
        self.wait = Some(RetryWait::Failed {
            why,
            limit,
            changes: call.worker.table.subscribe(),
        });
        slot.give_up()
    }

    /// Takes a place at an instance that has not failed.
    ///
    /// # Errors
    /// The permit back: a snapshot took the last instance away, or none has room.
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

    /// Waits until the next pick makes sense: after all instances failed, for a snapshot that brings a new one, or a moment; for as
    /// long as a sleeping function may take to start.
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
        if !self.tried_serials.is_empty() {
            tokio::time::sleep(PICK_RETRY_INTERVAL).await;
        }
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
        if !endpoint_slot::all_ready_tried(&call.function, &self.tried_serials)
            && self.tried_serials.len() < call.worker.max_attempts
        {
            return Ok(());
        }
        let delay = FIRST_RETRY_DELAY * (1 << self.rounds.min(MAX_DOUBLINGS));
        if Instant::now() + delay >= limit {
            return Err(unreachable_error(call, why));
        }
        let _ = tokio::time::timeout(delay, changes.changed()).await; // either way it is time to look again
        self.rounds += 1;
        self.tried_serials.clear();
        call.route = call.function.route();
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
