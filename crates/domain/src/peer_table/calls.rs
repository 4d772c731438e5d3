//! Open calls: their waiters, owed responses and deadlines.

use std::cmp::Reverse;
use std::task::{Poll, Waker};

use crate::clock::MonotonicNanos;

use super::{CallNumber, ChannelNumber, PeerTable};

#[derive(Debug)]
pub(super) struct OpenCall<T> {
    pub(super) generation: u32,
    pub(super) channel: ChannelNumber,
    started_at: MonotonicNanos,
    pub(super) owed: bool,
    waiter: CallWaiter<T>,
}

#[derive(Debug)]
pub(super) enum CallWaiter<T> {
    Waiting(Option<Waker>),
    Outcome(T),
    Abandoned,
}

/// A call whose response has arrived, or never will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SettledCall {
    /// Time at which the call was made.
    pub started_at: MonotonicNanos,
    /// True if a waiter still wanted the response.
    pub wanted: bool,
}

impl<T> PeerTable<T> {
    /// Opens a call on a channel. `deadline` 0: none.
    pub fn open_call(
        &mut self,
        channel: ChannelNumber,
        now: MonotonicNanos,
        deadline: MonotonicNanos,
    ) -> CallNumber {
        // A late response to an ended call names an old generation, so it is ignored.
        self.last_generation = self.last_generation.wrapping_add(1);
        let open = OpenCall {
            generation: self.last_generation,
            channel,
            started_at: now,
            owed: true,
            waiter: CallWaiter::Waiting(None),
        };
        let call = call_number(self.calls.insert(open), self.last_generation);
        if let Some(peer) = self.peers.get_mut(&channel) {
            peer.in_flight += 1;
        }
        // Deadlines of ended calls stay in the heap; rebuild it before they dominate.
        if deadline > 0 {
            self.add_deadline(deadline, call);
        }
        call
    }

    fn add_deadline(&mut self, deadline: MonotonicNanos, call: CallNumber) {
        // 64: small tables are not rebuilt. Twice the calls: the cost per call stays constant.
        if self.deadlines.len() > 64 + 2 * self.calls.len() {
            let mut kept = std::mem::take(&mut self.deadlines).into_vec();
            kept.retain(|Reverse((_, call))| self.is_awaited(*call));
            self.deadlines = kept.into();
        }
        self.deadlines.push(Reverse((deadline, call)));
    }

    /// Undoes the opening of a call that was not sent.
    pub fn undo_open(&mut self, call: CallNumber) {
        self.settle_with_outcome(call, None);
        self.abandon_call(call);
    }

    /// Returns true if the peer owes a response to this call on this channel.
    pub fn is_response_owed(&self, call: CallNumber, channel: ChannelNumber) -> bool {
        self.find_call(call)
            .is_some_and(|open| open.owed && open.channel == channel)
    }

    /// Returns true if a waiter waits for the outcome.
    pub fn is_awaited(&self, call: CallNumber) -> bool {
        self.find_call(call)
            .is_some_and(|open| matches!(open.waiter, CallWaiter::Waiting(_)))
    }

    /// Settles a call with its outcome. None when no response was owed.
    pub fn settle_call(&mut self, call: CallNumber, outcome: T) -> Option<SettledCall> {
        self.settle_with_outcome(call, Some(outcome))
    }

    fn settle_with_outcome(&mut self, call: CallNumber, outcome: Option<T>) -> Option<SettledCall> {
        let open = self.find_call_mut(call).filter(|open| open.owed)?;
        open.owed = false;
        let (channel, began, wanted) = (
            open.channel,
            open.started_at,
            matches!(open.waiter, CallWaiter::Waiting(_)),
        );
        if let Some(peer) = self.peers.get_mut(&channel) {
            // The credit returns with the response, not when the waiter leaves.
            peer.in_flight = peer.in_flight.saturating_sub(1);
        }
        match outcome {
            Some(outcome) if wanted => self.deliver_outcome(call, outcome),
            _ => self.remove_if_done(call),
        }
        Some(SettledCall {
            started_at: began,
            wanted,
        })
    }

    /// Delivers an outcome before the response, at the deadline. Returns the channel if there was a
    /// waiter.
    pub fn expire_call(&mut self, call: CallNumber, outcome: T) -> Option<ChannelNumber> {
        let channel = self
            .find_call(call)
            .filter(|open| matches!(open.waiter, CallWaiter::Waiting(_)))?
            .channel;
        self.deliver_outcome(call, outcome);
        Some(channel)
    }

    /// Delivers the beginning of a response; the response stays owed until it ends. False without a
    /// waiter.
    pub fn begin_response(&mut self, call: CallNumber, beginning: T) -> bool {
        self.expire_call(call, beginning).is_some()
    }

    fn deliver_outcome(&mut self, call: CallNumber, outcome: T) {
        if let Some(open) = self.find_call_mut(call)
            && let CallWaiter::Waiting(Some(waker)) =
                std::mem::replace(&mut open.waiter, CallWaiter::Outcome(outcome))
        {
            waker.wake();
        }
    }

    /// Returns the outcome if it is there; otherwise stores `waker`.
    pub fn poll_outcome(&mut self, call: CallNumber, waker: Option<&Waker>) -> Poll<Option<T>> {
        let Some(open) = self.find_call_mut(call) else {
            return Poll::Ready(None);
        };
        if let CallWaiter::Waiting(waits) = &mut open.waiter {
            *waits = waker.cloned();
            return Poll::Pending;
        }
        let waiter = std::mem::replace(&mut open.waiter, CallWaiter::Abandoned);
        self.remove_if_done(call);
        Poll::Ready(if let CallWaiter::Outcome(outcome) = waiter {
            Some(outcome)
        } else {
            None
        })
    }

    /// Removes the waiter. Returns the channel if the peer must be told to cancel.
    pub fn abandon_call(&mut self, call: CallNumber) -> Option<ChannelNumber> {
        let open = self.find_call_mut(call)?;
        let waited = matches!(
            std::mem::replace(&mut open.waiter, CallWaiter::Abandoned),
            CallWaiter::Waiting(_)
        );
        let cancel_channel = (open.owed && waited).then_some(open.channel);
        self.remove_if_done(call);
        cancel_channel
    }

    /// Returns the next call whose deadline is not after `now`.
    pub fn next_expired(&mut self, now: MonotonicNanos) -> Option<CallNumber> {
        while let Some(&Reverse((deadline, call))) = self.deadlines.peek() {
            // Entries of ended calls are dropped on the way: the heap cannot remove them earlier.
            let waits = self.is_awaited(call);
            if waits && deadline > now {
                return None;
            }
            self.deadlines.pop();
            if waits {
                return Some(call);
            }
        }
        None
    }

    /// Returns the next deadline at which [`PeerTable::next_expired`] yields a call.
    pub fn next_deadline(&mut self) -> Option<MonotonicNanos> {
        while let Some(&Reverse((deadline, call))) = self.deadlines.peek() {
            if self.is_awaited(call) {
                return Some(deadline);
            }
            self.deadlines.pop();
        }
        None
    }

    /// Returns the channel of a call.
    pub fn call_channel(&self, call: CallNumber) -> Option<ChannelNumber> {
        self.find_call(call).map(|open| open.channel)
    }

    /// Returns the number of calls in the table.
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    fn find_call(&self, call: CallNumber) -> Option<&OpenCall<T>> {
        self.calls
            .get(slab_index(call))
            .filter(|open| open.generation == call_generation(call))
    }

    fn find_call_mut(&mut self, call: CallNumber) -> Option<&mut OpenCall<T>> {
        self.calls
            .get_mut(slab_index(call))
            .filter(|open| open.generation == call_generation(call))
    }

    fn remove_if_done(&mut self, call: CallNumber) {
        if self
            .find_call(call)
            .is_some_and(|open| !open.owed && matches!(open.waiter, CallWaiter::Abandoned))
        {
            self.calls.remove(slab_index(call));
        }
    }
}

pub(super) fn call_number(index: usize, life: u32) -> CallNumber {
    u64::from(life) << 32 | index as u64
}

fn slab_index(call: CallNumber) -> usize {
    (call & u64::from(u32::MAX)) as usize
}

fn call_generation(call: CallNumber) -> u32 {
    (call >> 32) as u32
}
