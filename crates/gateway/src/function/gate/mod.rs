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

use atomic_state::Word;
use wait_queue::{Queue, Ticket};

pub(crate) use atomic_state::UNLIMITED;

type Waiting = Queue<oneshot::Sender<Permit>>;

/// The gate of one function.
#[derive(Debug)]
pub(crate) struct Gate {
    word: AtomicU64,
    queue: Mutex<Waiting>,
}

/// The right to be inside. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct Permit(Option<Arc<Gate>>);

/// A place in the queue; await it. Dropping it gives the place, or the permit that had just come, to the next one.
#[derive(Debug)]
pub(crate) struct Waiter {
    gate: Arc<Gate>,
    ticket: Ticket,
    call: oneshot::Receiver<Permit>,
}

/// What a newcomer gets.
#[derive(Debug)]
pub(crate) enum Entry {
    /// In at once.
    In(Permit),
    /// Has to wait; whether it is the only one.
    Wait(Waiter, First),
    /// All places in the queue are taken.
    Full,
    /// The function is gone.
    Closed,
}

/// Whether the queue was empty before.
pub(crate) type First = bool;

/// The function is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Closed;

impl Gate {
    /// A gate for `capacity` at a time ([`UNLIMITED`]: all) with `bound` places to wait.
    pub(crate) fn new(capacity: u32, bound: u32) -> Arc<Self> {
        let word = AtomicU64::new(Word::new(capacity).0);
        Arc::new(Self { word, queue: Mutex::new(Queue::new(bound)) })
    }

    /// Asks to come in. Never blocks for longer than the lock is held.
    pub(crate) fn enter(self: &Arc<Self>) -> Entry {
        match self.change(Word::entered) {
            true => Entry::In(Permit(Some(self.clone()))),
            false => self.enter_slowly(),
        }
    }

    fn enter_slowly(self: &Arc<Self>) -> Entry {
        let mut queue = self.lock();
        if queue.is_closed() {
            return Entry::Closed;
        }
        let first = queue.is_empty();
        let (send, call) = oneshot::channel();
        let entry = if first && self.word().has_room() {
            self.set(self.word().plus(1));
            Entry::In(Permit(Some(self.clone())))
        } else {
            match queue.join(send) {
                Some(ticket) => Entry::Wait(Waiter { gate: self.clone(), ticket, call }, first),
                None => Entry::Full,
            }
        };
        self.unlock(queue);
        entry
    }

    /// Gives a permit back and waits in the first place: for one who was let in and found no instance.
    ///
    /// # Errors
    /// When the function is gone.
    pub(crate) fn step_back(permit: Permit) -> Result<Waiter, Closed> {
        let gate = permit.forget().expect("a permit that is held has its gate");
        let mut queue = gate.lock();
        let (send, call) = oneshot::channel();
        let ticket = queue.rejoin(send);
        gate.set(gate.word().minus(1));
        gate.clone().admit(&mut queue);
        gate.unlock(queue);
        ticket.map(|ticket| Waiter { gate: gate.clone(), ticket, call }).ok_or(Closed)
    }

    /// Waits in the first place without a permit: for one whose permit was forgiven.
    ///
    /// # Errors
    /// When the function is gone.
    pub(crate) fn rejoin(self: &Arc<Self>) -> Result<Waiter, Closed> {
        let mut queue = self.lock();
        let (send, call) = oneshot::channel();
        let ticket = queue.rejoin(send);
        self.admit(&mut queue);
        self.unlock(queue);
        ticket.map(|ticket| Waiter { gate: self.clone(), ticket, call }).ok_or(Closed)
    }

    /// Sets both limits and lets in whoever fits now.
    pub(crate) fn resize(self: &Arc<Self>, capacity: u32, bound: u32) {
        let mut queue = self.lock();
        queue.set_bound(bound);
        self.set(self.word().resized(capacity));
        self.admit(&mut queue);
        self.unlock(queue);
    }

    /// Counts `n` permits as given back although they are still held: those at an instance that was withdrawn. Their
    /// holders call [`Permit::forget`].
    pub(crate) fn forgive(self: &Arc<Self>, n: u32) {
        let mut queue = self.lock();
        self.set(self.word().minus(n));
        self.admit(&mut queue);
        self.unlock(queue);
    }

    /// Ends it: whoever waits learns it, and nobody comes in again.
    pub(crate) fn close(self: &Arc<Self>) {
        let mut queue = self.lock();
        let waiting = queue.close();
        self.set(self.word().resized(0));
        self.unlock(queue);
        drop(waiting);
    }

    /// Requests inside and waiting.
    pub(crate) fn load(&self) -> (u32, usize) {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        (self.word().inside(), queue.len())
    }

    fn leave(self: &Arc<Self>) {
        if !self.change(Word::left) {
            self.forgive(1);
        }
    }

    /// Lets in from the queue while there is room. One who has gone meanwhile is passed over.
    fn admit(self: &Arc<Self>, queue: &mut Waiting) {
        while self.word().has_room() {
            let Some(call) = queue.pop() else { return };
            match call.send(Permit(Some(self.clone()))) {
                Ok(()) => self.set(self.word().plus(1)),
                Err(unheard) => drop(unheard.forget()), // dropping it as a permit would take the lock again
            }
        }
    }

    /// Applies `step` without the lock; false when it does not apply.
    fn change(&self, step: fn(Word) -> Option<Word>) -> bool {
        let step = |now| step(Word(now)).map(|next| next.0);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }

    /// From here to [`Self::unlock`] only the holder changes the word: every other change finds `contended` set, and a
    /// compare-and-swap that read the word before fails.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| Some(Word(now).contend(true).0));
        queue
    }

    fn unlock(&self, queue: MutexGuard<'_, Waiting>) {
        self.set(self.word().contend(!queue.is_empty()));
        drop(queue);
    }

    fn word(&self) -> Word {
        Word(self.word.load(Ordering::Acquire))
    }

    fn set(&self, word: Word) {
        self.word.store(word.0, Ordering::Release);
    }
}

impl Permit {
    /// Ends the permit without letting anybody in, because it was forgiven.
    pub(crate) fn forget(mut self) -> Option<Arc<Gate>> {
        self.0.take()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.leave();
        }
    }
}

impl Future for Waiter {
    type Output = Result<Permit, Closed>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.call).poll(cx).map_err(|_| Closed)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        // A permit on its way is dropped with `call`, after this, and lets the next one in.
        let mut queue = self.gate.lock();
        queue.abandon(self.ticket);
        self.gate.unlock(queue);
    }
}

#[cfg(test)]
mod tests;
