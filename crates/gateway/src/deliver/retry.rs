//! Which instances failed with a request, and how long it pauses before the next round.

use std::time::{Duration, Instant};

use nearpath_types::{PlatformError, Reason, policy};
use tokio::sync::watch;

use super::endpoint_slot::{self, Place};
use crate::COMPONENT;
use crate::call::Call;
use crate::function::Permit;

/// Pause after a pick found no room: the gate counts on the instance that failed, and would let the request in again at once.
const PICK_RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// First pause after all instances failed; it doubles [`MAX_DOUBLINGS`] times.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_DOUBLINGS: u32 = 5;

/// The instances that failed with one request.
#[derive(Default)]
pub(super) struct Retries {
    tried: Vec<u64>,
    rounds: u32,
    first_failure: Option<Instant>,
    waiting: Option<Waiting>,
}

/// The reason for which the next pick waits.
enum Waiting {
    /// An instance failed.
    Failed { why: String, limit: Instant, changes: watch::Receiver<u64> },
    /// No instance had room.
    NoRoom,
}

impl Retries {
    /// Returns whether [`Retries::wait`] has something to wait for.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Notes that `place` failed. Returns its permit, or `None` if the instance was withdrawn and the permit with it.
    pub(super) fn note_failure(&mut self, call: &Call, place: Place, why: String) -> Option<Permit> {
        let first = *self.first_failure.get_or_insert_with(Instant::now);
        self.tried.push(place.endpoint.serial);
        let limit = (first + call.route.policy.cold_timeout).min(call.clock.deadline());
        self.waiting = Some(Waiting::Failed { why, limit, changes: call.lane.table.changes() });
        place.leave()
    }

    /// Takes a place at an instance that has not failed.
    ///
    /// # Errors
    /// The permit back: a snapshot took the last instance away, or none has room.
    pub(super) fn pick(&mut self, call: &Call, permit: Permit) -> Result<Place, Permit> {
        let picked = endpoint_slot::pick(&call.route, permit, &self.tried, call.lane.random());
        self.waiting = picked.is_err().then_some(Waiting::NoRoom);
        picked
    }

    /// Waits until the next pick makes sense: after all instances failed, for a snapshot that brings a new one, or a moment; for as
    /// long as a sleeping function may take to start.
    ///
    /// # Errors
    /// `connect_failed` when the time is over.
    pub(super) async fn wait(&mut self, call: &mut Call) -> Result<(), PlatformError> {
        match self.waiting.take() {
            None => Ok(()),
            Some(Waiting::NoRoom) => self.wait_for_room(call).await,
            Some(Waiting::Failed { why, limit, changes }) => self.wait_for_instance(call, &why, limit, changes).await,
        }
    }

    async fn wait_for_room(&self, call: &Call) -> Result<(), PlatformError> {
        if Instant::now() >= call.clock.deadline() {
            return Err(unreachable(call, "the others have no room"));
        }
        if !self.tried.is_empty() {
            tokio::time::sleep(PICK_RETRY_INTERVAL).await;
        }
        tokio::task::yield_now().await;
        Ok(())
    }

    async fn wait_for_instance(
        &mut self,
        call: &mut Call,
        why: &str,
        limit: Instant,
        mut changes: watch::Receiver<u64>,
    ) -> Result<(), PlatformError> {
        call.route = call.function.route();
        if !endpoint_slot::all_tried(&call.function, &self.tried) && self.tried.len() < call.lane.attempts {
            return Ok(());
        }
        let pause = FIRST_PAUSE * (1 << self.rounds.min(MAX_DOUBLINGS));
        if Instant::now() + pause >= limit {
            return Err(unreachable(call, why));
        }
        let _ = tokio::time::timeout(pause, changes.changed()).await; // either way it is time to look again
        self.rounds += 1;
        self.tried.clear();
        call.route = call.function.route();
        call.admitted = Instant::now();
        Ok(())
    }
}

fn unreachable(call: &Call, why: &str) -> PlatformError {
    let message = format!("no instance of {} could be reached: {why}", call.function.name);
    PlatformError::new(COMPONENT, Reason::ConnectFailed, message).governed_by(policy::COLD_TIMEOUT)
}
