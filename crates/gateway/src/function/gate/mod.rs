//! How many requests of one function may be at its instances, over all threads; the others wait in order.
//!
//! While nobody waits, coming and going is one compare-and-swap. From the moment somebody has to wait until nobody
//! does, every change goes through the queue's lock, so that no newcomer passes those who wait and no place is lost.

mod atomic_state;
mod wait_queue;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use atomic_state::GateState;
use wait_queue::{AdmissionQueue, QueueTicket};

pub(crate) use atomic_state::UNLIMITED;

type PermitQueue = AdmissionQueue<oneshot::Sender<AdmissionPermit>>;

/// The gate of one function.
#[derive(Debug)]
pub(crate) struct AdmissionGate {
    atomic_state: AtomicU64,
    queue: Mutex<PermitQueue>,
}

/// The right to be inside. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct AdmissionPermit(Option<Arc<AdmissionGate>>);

/// A place in the queue; await it. Dropping it gives the place, or the permit that had just come, to the next one.
#[derive(Debug)]
pub(crate) struct GateWaiter {
    gate: Arc<AdmissionGate>,
    ticket: QueueTicket,
    permit: oneshot::Receiver<AdmissionPermit>,
}

/// What a newcomer gets.
#[derive(Debug)]
pub(crate) enum GateEntry {
    /// In at once.
    Admitted(AdmissionPermit),
    /// Has to wait; whether it is the only one.
    Queued(GateWaiter, IsFirst),
    /// All places in the queue are taken.
    Full,
    /// The function is gone.
    Closed,
}

/// Whether the queue was empty before.
pub(crate) type IsFirst = bool;

/// The function is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GateClosed;

impl AdmissionGate {
    /// A gate for `capacity` at a time ([`UNLIMITED`]: all) with `bound` places to wait.
    pub(crate) fn new(capacity: u32, max_waiting: u32) -> Arc<Self> {
        let atomic_state = AtomicU64::new(GateState::new(capacity).0);
        Arc::new(Self {
            atomic_state,
            queue: Mutex::new(AdmissionQueue::new(max_waiting)),
        })
    }

    /// Asks to come in. Never blocks for longer than the lock is held.
    pub(crate) fn enter_gate(self: &Arc<Self>) -> GateEntry {
        match self.try_update(GateState::with_entry) {
            true => GateEntry::Admitted(AdmissionPermit(Some(self.clone()))),
            false => self.enter_locked(),
        }
    }

    fn enter_locked(self: &Arc<Self>) -> GateEntry {
        let mut queue = self.lock_queue();
        if queue.is_closed() {
            return GateEntry::Closed;
        }
        let is_first = queue.is_empty();
        let (sender, permit) = oneshot::channel();
        let entry = if is_first && self.state().has_capacity() {
            self.store_state(self.state().plus_admitted(1));
            GateEntry::Admitted(AdmissionPermit(Some(self.clone())))
        } else {
            match queue.push_last(sender) {
                Some(ticket) => GateEntry::Queued(
                    GateWaiter {
                        gate: self.clone(),
                        ticket,
                        permit,
                    },
                    is_first,
                ),
                None => GateEntry::Full,
            }
        };
        self.unlock_queue(queue);
        entry
    }

    /// Gives a permit back and waits in the first place: for one who was let in and found no instance.
    ///
    /// # Errors
    /// When the function is gone.
    pub(crate) fn requeue_first(permit: AdmissionPermit) -> Result<GateWaiter, GateClosed> {
        let gate = permit.disarm().expect("a permit that is held has its gate");
        let mut queue = gate.lock_queue();
        let (sender, permit) = oneshot::channel();
        let ticket = queue.push_first(sender);
        gate.store_state(gate.state().minus_admitted(1));
        gate.clone().admit_waiting(&mut queue);
        gate.unlock_queue(queue);
        ticket
            .map(|ticket| GateWaiter {
                gate: gate.clone(),
                ticket,
                permit,
            })
            .ok_or(GateClosed)
    }

    /// Waits in the first place without a permit: for one whose permit was forgiven.
    ///
    /// # Errors
    /// When the function is gone.
    pub(crate) fn requeue_without_permit(self: &Arc<Self>) -> Result<GateWaiter, GateClosed> {
        let mut queue = self.lock_queue();
        let (sender, permit) = oneshot::channel();
        let ticket = queue.push_first(sender);
        self.admit_waiting(&mut queue);
        self.unlock_queue(queue);
        ticket
            .map(|ticket| GateWaiter {
                gate: self.clone(),
                ticket,
                permit,
            })
            .ok_or(GateClosed)
    }

    /// Sets both limits and lets in whoever fits now.
    pub(crate) fn set_limits(self: &Arc<Self>, capacity: u32, max_waiting: u32) {
        let mut queue = self.lock_queue();
        queue.set_max_waiting(max_waiting);
        self.store_state(self.state().with_capacity(capacity));
        self.admit_waiting(&mut queue);
        self.unlock_queue(queue);
    }

    /// Counts `n` permits as given back although they are still held: those at an instance that was withdrawn. Their
    /// holders call [`AdmissionPermit::disarm`].
    pub(crate) fn release_withdrawn(self: &Arc<Self>, n: u32) {
        let mut queue = self.lock_queue();
        self.store_state(self.state().minus_admitted(n));
        self.admit_waiting(&mut queue);
        self.unlock_queue(queue);
    }

    /// Ends it: whoever waits learns it, and nobody comes in again.
    pub(crate) fn close_gate(self: &Arc<Self>) {
        let mut queue = self.lock_queue();
        let waiting = queue.close_queue();
        self.store_state(self.state().with_capacity(0));
        self.unlock_queue(queue);
        drop(waiting);
    }

    /// Requests inside and waiting.
    pub(crate) fn load_counts(&self) -> (u32, usize) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        (self.state().admitted_count(), queue.len())
    }

    fn release_permit(self: &Arc<Self>) {
        if !self.try_update(GateState::with_exit) {
            self.release_withdrawn(1);
        }
    }

    /// Lets in from the queue while there is room. One who has gone meanwhile is passed over.
    fn admit_waiting(self: &Arc<Self>, queue: &mut PermitQueue) {
        while self.state().has_capacity() {
            let Some(call) = queue.pop_first() else {
                return;
            };
            match call.send(AdmissionPermit(Some(self.clone()))) {
                Ok(()) => self.store_state(self.state().plus_admitted(1)),
                Err(undelivered) => drop(undelivered.disarm()), // dropping it as a permit would take the lock again
            }
        }
    }

    /// Applies `step` without the lock; false when it does not apply.
    fn try_update(&self, step: fn(GateState) -> Option<GateState>) -> bool {
        let step = |now| step(GateState(now)).map(|next| next.0);
        self.atomic_state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
            .is_ok()
    }

    /// From here to [`Self::unlock_queue`] only the holder changes the word: every other change finds `contended` set, and a
    /// compare-and-swap that read the word before fails.
    fn lock_queue(&self) -> MutexGuard<'_, PermitQueue> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self
            .atomic_state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                Some(GateState(now).with_contended(true).0)
            });
        queue
    }

    fn unlock_queue(&self, queue: MutexGuard<'_, PermitQueue>) {
        self.store_state(self.state().with_contended(!queue.is_empty()));
        drop(queue);
    }

    fn state(&self) -> GateState {
        GateState(self.atomic_state.load(Ordering::Acquire))
    }

    fn store_state(&self, state: GateState) {
        self.atomic_state.store(state.0, Ordering::Release);
    }
}

impl AdmissionPermit {
    /// Ends the permit without letting anybody in, because it was forgiven.
    pub(crate) fn disarm(mut self) -> Option<Arc<AdmissionGate>> {
        self.0.take()
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.release_permit();
        }
    }
}

impl Future for GateWaiter {
    type Output = Result<AdmissionPermit, GateClosed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.permit).poll(cx).map_err(|_| GateClosed)
    }
}

impl Drop for GateWaiter {
    fn drop(&mut self) {
        // A permit on its way is dropped with `call`, after this, and lets the next one in.
        let mut queue = self.gate.lock_queue();
        queue.remove_ticket(self.ticket);
        self.gate.unlock_queue(queue);
    }
}

#[cfg(test)]
mod tests;
