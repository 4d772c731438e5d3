//! Admission gate of one function: limits its open requests over all threads and queues the
//! others; sources take turns.
//!
//! Without waiting requests, admission and release are one compare-and-swap each. While requests
//! wait, every change takes the queue's lock, so that no new request overtakes them and no permit
//! is lost.

mod atomic_state;
mod wait_queue;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use nearpath_types::SourceNetwork;
use tokio::sync::oneshot;

use atomic_state::GateState;
use wait_queue::{AdmissionQueue, PushResult, QueueTicket};

pub(crate) use atomic_state::UNLIMITED;

type PermitQueue = AdmissionQueue<oneshot::Sender<Result<AdmissionPermit, GateRefusal>>>;

/// Admission gate of one function.
#[derive(Debug)]
pub(crate) struct AdmissionGate {
    atomic_state: AtomicU64,
    queue: Mutex<PermitQueue>,
}

/// Permission to send a request to an instance. Dropping it admits the next request.
#[derive(Debug)]
pub(crate) struct AdmissionPermit(Option<Arc<AdmissionGate>>);

/// Position in the queue, to be awaited. Dropping it passes the position, or a permit that just
/// came, to the next request.
#[derive(Debug)]
pub(crate) struct GateWaiter {
    gate: Arc<AdmissionGate>,
    ticket: QueueTicket,
    permit: oneshot::Receiver<Result<AdmissionPermit, GateRefusal>>,
}

/// Result of entering a gate.
#[derive(Debug)]
pub(crate) enum GateEntry {
    /// Admitted at once.
    Admitted(AdmissionPermit),
    /// Has to wait; the flag tells whether the queue was empty.
    Queued(GateWaiter, IsFirst),
    /// The queue is full.
    Full,
    /// The function is gone.
    Closed,
}

/// True if the queue was empty before.
pub(crate) type IsFirst = bool;

/// Why a waiting request is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GateRefusal {
    /// The function is gone.
    Closed,
    /// A request of another source took the place in a full queue.
    Displaced,
}

impl AdmissionGate {
    /// Creates a gate with `capacity` permits ([`UNLIMITED`]: no limit) and `max_waiting` queue
    /// positions.
    pub(crate) fn new(capacity: u32, max_waiting: u32) -> Arc<Self> {
        let atomic_state = AtomicU64::new(GateState::new(capacity).0);
        Arc::new(Self {
            atomic_state,
            queue: Mutex::new(AdmissionQueue::new(max_waiting)),
        })
    }

    /// Enters the gate, or waits in the queue of `source`. Blocks only for short critical sections.
    pub(crate) fn enter_gate(self: &Arc<Self>, source: SourceNetwork) -> GateEntry {
        match self.try_enter() {
            Some(permit) => GateEntry::Admitted(permit),
            None => self.enter_locked(source),
        }
    }

    /// Enters the gate if no request waits and there is capacity.
    pub(crate) fn try_enter(self: &Arc<Self>) -> Option<AdmissionPermit> {
        self.try_update(GateState::with_entry)
            .then(|| AdmissionPermit(Some(self.clone())))
    }

    /// Enters the gate if no request waits and fewer than half of the places are taken; for a
    /// request whose body is still arriving.
    pub(crate) fn try_enter_below_half(self: &Arc<Self>) -> Option<AdmissionPermit> {
        self.try_update(GateState::with_entry_below_half)
            .then(|| AdmissionPermit(Some(self.clone())))
    }

    fn enter_locked(self: &Arc<Self>, source: SourceNetwork) -> GateEntry {
        let mut queue = self.lock_queue();
        if queue.is_closed() {
            return GateEntry::Closed;
        }
        let is_first = queue.is_empty();
        let (sender, permit) = oneshot::channel();
        // Checked again under the lock: a permit may have come back since the fast path failed.
        let entry = if is_first && self.state().has_capacity() {
            self.store_state(self.state().plus_admitted(1));
            GateEntry::Admitted(AdmissionPermit(Some(self.clone())))
        } else {
            let ticket = match queue.push_last(source, sender) {
                PushResult::Queued(ticket) => Some(ticket),
                PushResult::Displaced(ticket, displaced) => {
                    // Its receiver may be gone.
                    let _ = displaced.send(Err(GateRefusal::Displaced));
                    Some(ticket)
                }
                PushResult::Full => None,
            };
            ticket.map_or(GateEntry::Full, |ticket| {
                let waiter = GateWaiter {
                    gate: self.clone(),
                    ticket,
                    permit,
                };
                GateEntry::Queued(waiter, is_first)
            })
        };
        self.unlock_queue(queue);
        entry
    }

    /// Returns a permit and waits in the first position; for an admitted request that found no
    /// instance.
    ///
    /// # Errors
    /// If the function is gone.
    pub(crate) fn requeue_first(permit: AdmissionPermit) -> Result<GateWaiter, GateRefusal> {
        let gate = permit.disarm().expect("a permit that is held has its gate");
        let mut queue = gate.lock_queue();
        let (sender, permit) = oneshot::channel();
        // Queued before the permit is returned: otherwise the next in line would get it first.
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
            .ok_or(GateRefusal::Closed)
    }

    /// Waits in the first position without a permit; for a request whose permit a withdrawal has
    /// returned.
    ///
    /// # Errors
    /// If the function is gone.
    pub(crate) fn requeue_without_permit(self: &Arc<Self>) -> Result<GateWaiter, GateRefusal> {
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
            .ok_or(GateRefusal::Closed)
    }

    /// Sets both limits and admits the requests that fit now.
    pub(crate) fn set_limits(self: &Arc<Self>, capacity: u32, max_waiting: u32) {
        let mut queue = self.lock_queue();
        queue.set_max_waiting(max_waiting);
        self.store_state(self.state().with_capacity(capacity));
        self.admit_waiting(&mut queue);
        self.unlock_queue(queue);
    }

    /// Counts `n` permits as returned although they are still held: those at a withdrawn
    /// instance. Their holders call [`AdmissionPermit::disarm`].
    pub(crate) fn release_withdrawn(self: &Arc<Self>, n: u32) {
        let mut queue = self.lock_queue();
        queue.note_returned(n as usize);
        self.store_state(self.state().minus_admitted(n));
        self.admit_waiting(&mut queue);
        self.unlock_queue(queue);
    }

    /// Closes the gate: waiting requests fail, and no request enters again.
    pub(crate) fn close_gate(self: &Arc<Self>) {
        let mut queue = self.lock_queue();
        let waiting = queue.close_queue();
        // Without capacity, the fast path fails too, and every later request sees the closed
        // queue.
        self.store_state(self.state().with_capacity(0));
        self.unlock_queue(queue);
        // After the unlock: dropping a sender wakes its receiver, which may take the lock.
        drop(waiting);
    }

    /// Returns the admitted and the waiting requests.
    pub(crate) fn load_counts(&self) -> (u32, usize) {
        // Without setting the contended bit: metrics must not slow the fast path down.
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        (self.state().admitted_count(), queue.len())
    }

    /// Returns whether requests wait. True also while another thread changes the queue.
    pub(crate) fn has_waiting(&self) -> bool {
        self.state().is_contended()
    }

    /// Counts the place of a withdrawn instance, which was returned before its holder ended: no
    /// request got it by a claim.
    pub(crate) fn void_claim(&self) {
        if self.has_waiting() {
            let mut queue = self.lock_queue();
            queue.note_returned(1);
            self.unlock_queue(queue);
        }
    }

    /// Claims the place of a caller that was too slow for it, and makes its `source` give turns to
    /// others. False: a place is claimed for each waiting request already.
    pub(crate) fn claim_place(&self, source: SourceNetwork) -> bool {
        let mut queue = self.lock_queue();
        let is_claimed = queue.claim_place(source);
        self.unlock_queue(queue);
        is_claimed
    }

    fn release_permit(self: &Arc<Self>) {
        if !self.try_update(GateState::with_exit) {
            self.release_withdrawn(1);
        }
    }

    /// Admits requests from the queue while there is capacity. Skips those that were dropped
    /// meanwhile.
    fn admit_waiting(self: &Arc<Self>, queue: &mut PermitQueue) {
        while self.state().has_capacity() {
            let Some(sender) = queue.pop_first() else {
                return;
            };
            match sender.send(Ok(AdmissionPermit(Some(self.clone())))) {
                Ok(()) => self.store_state(self.state().plus_admitted(1)),
                // A normal drop would take the lock again.
                Err(undelivered) => drop(undelivered.map(AdmissionPermit::disarm)),
            }
        }
    }

    /// Applies `step` without the lock; false if it does not apply.
    fn try_update(&self, step: fn(GateState) -> Option<GateState>) -> bool {
        let step = |now| step(GateState(now)).map(|next| next.0);
        // Acquire and release pair over all changes of this word, so that a new holder sees what
        // the last one did.
        self.atomic_state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
            .is_ok()
    }

    /// Locks the queue. Until [`Self::unlock_queue`], only the holder changes the state: other
    /// changes find the contended bit set, and a compare-and-swap with an older value fails.
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
        // Before the mutex is released: a later store could erase the contended bit of the next
        // holder.
        self.store_state(self.state().with_contended(!queue.is_empty()));
        drop(queue);
    }

    fn state(&self) -> GateState {
        GateState(self.atomic_state.load(Ordering::Acquire))
    }

    fn store_state(&self, state: GateState) {
        // A plain store is enough: under the lock no other thread writes the word.
        self.atomic_state.store(state.0, Ordering::Release);
    }
}

impl AdmissionPermit {
    /// Ends the permit without admitting a request, because a withdrawal returned it.
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
    type Output = Result<AdmissionPermit, GateRefusal>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // A dropped sender means that the gate was closed; there is no other way to lose it.
        Pin::new(&mut self.permit)
            .poll(cx)
            .map(|answer| answer.unwrap_or(Err(GateRefusal::Closed)))
    }
}

impl Drop for GateWaiter {
    fn drop(&mut self) {
        // A permit on its way is dropped with `permit` after this, and admits the next request.
        let mut queue = self.gate.lock_queue();
        queue.remove_ticket(self.ticket);
        self.gate.unlock_queue(queue);
    }
}

#[cfg(test)]
mod tests;
