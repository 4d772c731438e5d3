//! Admission gate of one function: limits its open requests over all threads and queues the
//! others; sources share the places (ADR 91).
//!
//! Without a limit and without waiting requests, admission and release are one compare-and-swap
//! each. Otherwise every change takes the lock, so that the places of each source are counted, no new
//! request overtakes those that wait, and no permit is lost.

mod atomic_state;
mod place_shares;
mod wait_queue;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use nearpath_types::SourceNetwork;
use tokio::sync::oneshot;

use atomic_state::GateState;
use place_shares::{CountedPlace, PlaceShares};
use wait_queue::{AdmissionQueue, PushResult, QueueTicket};

pub(crate) use atomic_state::UNLIMITED;

type PermitQueue = AdmissionQueue<oneshot::Sender<Result<AdmissionPermit, GateRefusal>>>;

/// Admission gate of one function.
#[derive(Debug)]
pub(crate) struct AdmissionGate {
    atomic_state: AtomicU64,
    /// Requests wait. Unlike the contended bit, not set while the lock is held for other reasons.
    has_waiting: AtomicBool,
    locked: Mutex<LockedState>,
}

/// Parts of a gate behind its lock.
#[derive(Debug)]
struct LockedState {
    queue: PermitQueue,
    shares: PlaceShares,
}

/// Permission to send a request to an instance. Dropping it admits the next request.
#[derive(Debug)]
pub(crate) struct AdmissionPermit {
    /// `None`: the permit has been returned.
    gate: Option<Arc<AdmissionGate>>,
    /// `None`: admitted without a limit.
    place: Option<CountedPlace>,
}

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
            has_waiting: AtomicBool::new(false),
            locked: Mutex::new(LockedState {
                queue: AdmissionQueue::new(max_waiting),
                shares: PlaceShares::default(),
            }),
        })
    }

    /// Enters the gate, or waits in the queue of `source`. Blocks only for short critical sections.
    pub(crate) fn enter_gate(self: &Arc<Self>, source: SourceNetwork) -> GateEntry {
        match self.try_enter_uncounted() {
            Some(permit) => GateEntry::Admitted(permit),
            None => self.enter_locked(source),
        }
    }

    /// Enters the gate if `source` need not wait.
    pub(crate) fn try_enter(self: &Arc<Self>, source: SourceNetwork) -> Option<AdmissionPermit> {
        self.try_enter_uncounted().or_else(|| {
            let mut locked = self.lock_state();
            let permit = self.take_free_place(&mut locked, source);
            self.unlock_state(locked);
            permit
        })
    }

    /// Enters the gate if `source` need not wait and fewer than half of the places are taken; for a
    /// request whose body is still arriving.
    pub(crate) fn try_enter_below_half(
        self: &Arc<Self>,
        source: SourceNetwork,
    ) -> Option<AdmissionPermit> {
        let mut locked = self.lock_state();
        locked.shares.note_request(source, Instant::now());
        let permit = match locked.queue.is_empty() && self.state().is_below_half() {
            true => self.take_free_place(&mut locked, source),
            false => None,
        };
        self.unlock_state(locked);
        permit
    }

    fn try_enter_uncounted(self: &Arc<Self>) -> Option<AdmissionPermit> {
        let is_admitted = self.try_update(GateState::with_uncounted_entry);
        is_admitted.then(|| self.make_permit(None))
    }

    /// Takes a place that no waiting request may have.
    fn take_free_place(
        self: &Arc<Self>,
        locked: &mut LockedState,
        source: SourceNetwork,
    ) -> Option<AdmissionPermit> {
        let now = Instant::now();
        locked.shares.note_request(source, now);
        // They come first, and time alone may have given them room.
        self.admit_waiting(locked, now);
        let state = self.state();
        let has_room =
            state.has_capacity() && locked.shares.has_room(source, state.capacity(), now);
        has_room.then(|| {
            let place = self.next_place(locked, source);
            self.count_place(locked, place);
            self.make_permit(place)
        })
    }

    fn enter_locked(self: &Arc<Self>, source: SourceNetwork) -> GateEntry {
        let mut locked = self.lock_state();
        if locked.queue.is_closed() {
            self.unlock_state(locked);
            return GateEntry::Closed;
        }
        let is_first = locked.queue.is_empty();
        let entry = match self.take_free_place(&mut locked, source) {
            Some(permit) => GateEntry::Admitted(permit),
            None => self.push_waiter(&mut locked.queue, source, is_first),
        };
        self.unlock_state(locked);
        entry
    }

    fn push_waiter(
        self: &Arc<Self>,
        queue: &mut PermitQueue,
        source: SourceNetwork,
        is_first: IsFirst,
    ) -> GateEntry {
        let (sender, permit) = oneshot::channel();
        let ticket = match queue.push_last(source, sender) {
            PushResult::Queued(ticket) => ticket,
            PushResult::Displaced(ticket, displaced) => {
                // Its receiver may be gone.
                let _ = displaced.send(Err(GateRefusal::Displaced));
                ticket
            }
            PushResult::Full => return GateEntry::Full,
        };
        let waiter = GateWaiter {
            gate: self.clone(),
            ticket,
            permit,
        };
        GateEntry::Queued(waiter, is_first)
    }

    /// Returns a permit of `source` and waits in the first position; for an admitted request that
    /// found no instance.
    ///
    /// # Errors
    /// If the function is gone.
    pub(crate) fn requeue_first(
        mut permit: AdmissionPermit,
        source: SourceNetwork,
    ) -> Result<GateWaiter, GateRefusal> {
        let gate = permit.gate.take();
        let gate = gate.expect("a permit that is held has its gate");
        gate.requeue_locked(source, |locked| {
            let place = permit.place.into_iter();
            place.for_each(|place| locked.shares.give_back(place));
            gate.store_state(gate.state().minus_admitted(1));
        })
    }

    /// Waits in the first position without a permit; for a request of `source` whose permit a
    /// withdrawal has returned.
    ///
    /// # Errors
    /// If the function is gone.
    pub(crate) fn requeue_without_permit(
        self: &Arc<Self>,
        source: SourceNetwork,
    ) -> Result<GateWaiter, GateRefusal> {
        self.requeue_locked(source, |_| {})
    }

    fn requeue_locked(
        self: &Arc<Self>,
        source: SourceNetwork,
        return_permit: impl FnOnce(&mut LockedState),
    ) -> Result<GateWaiter, GateRefusal> {
        let mut locked = self.lock_state();
        let (sender, permit) = oneshot::channel();
        // Queued before the permit is returned: otherwise the next in line would get it first.
        let ticket = locked.queue.push_first(source, sender);
        return_permit(&mut locked);
        self.admit_waiting(&mut locked, Instant::now());
        self.unlock_state(locked);
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
        let mut locked = self.lock_state();
        locked.queue.set_max_waiting(max_waiting);
        self.store_state(self.state().with_capacity(capacity));
        self.admit_waiting(&mut locked, Instant::now());
        self.unlock_state(locked);
    }

    /// Counts `n` permits as returned although they are still held: those at a withdrawn
    /// instance. Their holders call [`AdmissionPermit::disarm`].
    pub(crate) fn release_withdrawn(self: &Arc<Self>, n: u32) {
        if n == 0 {
            return;
        }
        let mut locked = self.lock_state();
        locked.shares.forget_places();
        locked.queue.note_returned(n as usize);
        self.return_places(&mut locked, n);
        self.unlock_state(locked);
    }

    fn return_places(self: &Arc<Self>, locked: &mut LockedState, n: u32) {
        self.store_state(self.state().minus_admitted(n));
        self.admit_waiting(locked, Instant::now());
    }

    /// Admits waiting requests whose sources have got room by time alone: no other source calls any
    /// more.
    pub(crate) fn recheck_waiting(self: &Arc<Self>) {
        let mut locked = self.lock_state();
        self.admit_waiting(&mut locked, Instant::now());
        self.unlock_state(locked);
    }

    /// Closes the gate: waiting requests fail, and no request enters again.
    pub(crate) fn close_gate(self: &Arc<Self>) {
        let mut locked = self.lock_state();
        let waiting = locked.queue.close_queue();
        // Without capacity, the fast path fails too, and every later request sees the closed
        // queue.
        self.store_state(self.state().with_capacity(0));
        self.unlock_state(locked);
        // After the unlock: dropping a sender wakes its receiver, which may take the lock.
        drop(waiting);
    }

    /// Returns the admitted and the waiting requests.
    pub(crate) fn load_counts(&self) -> (u32, usize) {
        // Without setting the contended bit: metrics must not slow the fast path down.
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        (self.state().admitted_count(), locked.queue.len())
    }

    /// Returns whether requests wait.
    pub(crate) fn has_waiting(&self) -> bool {
        self.has_waiting.load(Ordering::Relaxed) // a hint: the lock decides
    }

    /// Returns whether a place is free. Who waits all the same has its share of the places.
    pub(crate) fn has_free_place(&self) -> bool {
        self.state().has_capacity()
    }

    /// Counts the place of a withdrawn instance, which was returned before its holder ended: no
    /// request got it by a claim.
    pub(crate) fn void_claim(&self) {
        if self.has_waiting() {
            let mut locked = self.lock_state();
            locked.queue.note_returned(1);
            self.unlock_state(locked);
        }
    }

    /// Claims the place of a caller that was too slow for it, and makes its `source` give turns to
    /// others. False: a place is claimed already for each request that could use it.
    pub(crate) fn claim_place(&self, source: SourceNetwork) -> bool {
        let mut locked = self.lock_state();
        let LockedState { queue, shares } = &mut *locked;
        let (state, now) = (self.state(), Instant::now());
        // While places are free, only its own source waits for this one: the others lack room.
        let has_room = |other| match other == source {
            true => shares.gains_room(other, state.capacity(), now),
            false => !state.has_capacity() && shares.has_room(other, state.capacity(), now),
        };
        let is_claimed = queue.claim_place(source, has_room);
        self.unlock_state(locked);
        is_claimed
    }

    fn release_permit(self: &Arc<Self>, place: Option<CountedPlace>) {
        if place.is_none() && self.try_update(GateState::with_exit) {
            return;
        }
        let mut locked = self.lock_state();
        let LockedState { queue, shares } = &mut *locked;
        let is_awaited = place.is_some_and(|place| queue.has_request_of(place.source()));
        // A place that no request waits for fulfils no claim.
        if is_awaited || !self.state().has_capacity() {
            queue.note_returned(1);
        }
        place.into_iter().for_each(|place| shares.give_back(place));
        self.return_places(&mut locked, 1);
        self.unlock_state(locked);
    }

    /// Admits requests from the queue while there is capacity for their sources. Skips those that
    /// were dropped meanwhile.
    fn admit_waiting(self: &Arc<Self>, locked: &mut LockedState, now: Instant) {
        while self.state().has_capacity() {
            let LockedState { queue, shares } = &mut *locked;
            let capacity = self.state().capacity();
            let places_of = |source| {
                let has_room = shares.has_room(source, capacity, now);
                has_room.then(|| shares.held_by(source))
            };
            let Some((source, sender)) = queue.pop_first(places_of) else {
                return;
            };
            let place = self.next_place(locked, source);
            match sender.send(Ok(self.make_permit(place))) {
                Ok(()) => self.count_place(locked, place),
                // A normal drop would take the lock again.
                Err(undelivered) => drop(undelivered.map(|mut permit| permit.gate.take())),
            }
        }
    }

    /// Returns the next place of a source; `None` for a function without a limit.
    fn next_place(&self, locked: &LockedState, source: SourceNetwork) -> Option<CountedPlace> {
        let is_limited = self.state().capacity() != UNLIMITED;
        is_limited.then(|| locked.shares.place_of(source))
    }

    fn count_place(&self, locked: &mut LockedState, place: Option<CountedPlace>) {
        let place = place.into_iter();
        place.for_each(|place| locked.shares.take_place(place));
        self.store_state(self.state().plus_admitted(1));
    }

    fn make_permit(self: &Arc<Self>, place: Option<CountedPlace>) -> AdmissionPermit {
        AdmissionPermit {
            gate: Some(self.clone()),
            place,
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

    /// Takes the lock. Until [`Self::unlock_state`], only the holder changes the state: other
    /// changes find the contended bit set, and a compare-and-swap with an older value fails.
    fn lock_state(&self) -> MutexGuard<'_, LockedState> {
        let locked = self.locked.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self
            .atomic_state
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                Some(GateState(now).with_contended(true).0)
            });
        locked
    }

    fn unlock_state(&self, locked: MutexGuard<'_, LockedState>) {
        let has_waiting = !locked.queue.is_empty();
        self.has_waiting.store(has_waiting, Ordering::Relaxed);
        // Before the mutex is released: a later store could erase the contended bit of the next
        // holder.
        self.store_state(self.state().with_contended(has_waiting));
        drop(locked);
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
        self.gate.take()
    }
}

impl Drop for AdmissionPermit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.release_permit(self.place);
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
        let mut locked = self.gate.lock_state();
        locked.queue.remove_ticket(self.ticket);
        self.gate.unlock_state(locked);
    }
}

#[cfg(test)]
mod tests;
