//! The open calls: their waiters, their owed answers, their deadlines.

use std::cmp::Reverse;
use std::task::{Poll, Waker};

use crate::clock::Nanos;

use super::{Book, Call, Channel};

#[derive(Debug)]
pub(super) struct Open<T> {
    pub(super) life: u32,
    pub(super) channel: Channel,
    began: Nanos,
    pub(super) owed: bool,
    waiter: Waiter<T>,
}

#[derive(Debug)]
pub(super) enum Waiter<T> {
    Waits(Option<Waker>),
    Has(T),
    Left,
}

/// A call to which the answer has come, or never will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settled {
    /// When it was made.
    pub began: Nanos,
    /// Whether somebody still wanted the answer.
    pub wanted: bool,
}

impl<T> Book<T> {
    /// A call is being made on this channel. `deadline` 0: none.
    pub fn open(&mut self, channel: Channel, now: Nanos, deadline: Nanos) -> Call {
        self.life = self.life.wrapping_add(1);
        let open = Open { life: self.life, channel, began: now, owed: true, waiter: Waiter::Waits(None) };
        let call = number(self.calls.insert(open), self.life);
        if let Some(peer) = self.peers.get_mut(&channel) {
            peer.in_flight += 1;
        }
        if deadline > 0 {
            self.remember(deadline, call);
        }
        call
    }

    fn remember(&mut self, deadline: Nanos, call: Call) {
        if self.deadlines.len() > 64 + 2 * self.calls.len() {
            let mut kept = std::mem::take(&mut self.deadlines).into_vec();
            kept.retain(|Reverse((_, call))| self.waits(*call));
            self.deadlines = kept.into();
        }
        self.deadlines.push(Reverse((deadline, call)));
    }

    /// The call was not sent after all: nobody owes anything.
    pub fn unopen(&mut self, call: Call) {
        self.settle_with(call, None);
        self.leave(call);
    }

    /// Whether an answer to this call is owed on this channel.
    pub fn owed(&self, call: Call, channel: Channel) -> bool {
        self.find(call).is_some_and(|open| open.owed && open.channel == channel)
    }

    /// Whether somebody waits for an outcome that has not come.
    pub fn waits(&self, call: Call) -> bool {
        self.find(call).is_some_and(|open| matches!(open.waiter, Waiter::Waits(_)))
    }

    /// The answer has come, or never will. Nothing when it was not owed.
    pub fn settle(&mut self, call: Call, outcome: T) -> Option<Settled> {
        self.settle_with(call, Some(outcome))
    }

    fn settle_with(&mut self, call: Call, outcome: Option<T>) -> Option<Settled> {
        let open = self.find_mut(call).filter(|open| open.owed)?;
        open.owed = false;
        let (channel, began, wanted) = (open.channel, open.began, matches!(open.waiter, Waiter::Waits(_)));
        if let Some(peer) = self.peers.get_mut(&channel) {
            peer.in_flight = peer.in_flight.saturating_sub(1);
        }
        match outcome {
            Some(outcome) if wanted => self.give(call, outcome),
            _ => self.tidy(call),
        }
        Some(Settled { began, wanted })
    }

    /// Gives the waiter an outcome before the answer: the deadline has passed. The channel, if somebody waited.
    pub fn expire(&mut self, call: Call, outcome: T) -> Option<Channel> {
        let channel = self.find(call).filter(|open| matches!(open.waiter, Waiter::Waits(_)))?.channel;
        self.give(call, outcome);
        Some(channel)
    }

    /// Gives the waiter the beginning of an answer: it is owed until its end has come. False: nobody waits.
    pub fn begin(&mut self, call: Call, beginning: T) -> bool {
        self.expire(call, beginning).is_some()
    }

    fn give(&mut self, call: Call, outcome: T) {
        if let Some(open) = self.find_mut(call)
            && let Waiter::Waits(Some(waker)) = std::mem::replace(&mut open.waiter, Waiter::Has(outcome))
        {
            waker.wake();
        }
    }

    /// The outcome, if it has come; else `waker` is told when it does.
    pub fn poll(&mut self, call: Call, waker: Option<&Waker>) -> Poll<Option<T>> {
        let Some(open) = self.find_mut(call) else { return Poll::Ready(None) };
        if let Waiter::Waits(waits) = &mut open.waiter {
            *waits = waker.cloned();
            return Poll::Pending;
        }
        let waiter = std::mem::replace(&mut open.waiter, Waiter::Left);
        self.tidy(call);
        Poll::Ready(if let Waiter::Has(outcome) = waiter { Some(outcome) } else { None })
    }

    /// Nobody waits any more. The channel, if the answer is owed and had not been given up before: tell the peer.
    pub fn leave(&mut self, call: Call) -> Option<Channel> {
        let open = self.find_mut(call)?;
        let waited = matches!(std::mem::replace(&mut open.waiter, Waiter::Left), Waiter::Waits(_));
        let tell = (open.owed && waited).then_some(open.channel);
        self.tidy(call);
        tell
    }

    /// The next call whose deadline is not after `now`.
    pub fn due(&mut self, now: Nanos) -> Option<Call> {
        while let Some(&Reverse((deadline, call))) = self.deadlines.peek() {
            let waits = self.waits(call);
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

    /// When [`Book::due`] has something to say, if nothing happens before.
    pub fn next_deadline(&mut self) -> Option<Nanos> {
        while let Some(&Reverse((deadline, call))) = self.deadlines.peek() {
            if self.waits(call) {
                return Some(deadline);
            }
            self.deadlines.pop();
        }
        None
    }

    /// The channel that a call was made on.
    pub fn channel(&self, call: Call) -> Option<Channel> {
        self.find(call).map(|open| open.channel)
    }

    /// Calls that are not forgotten.
    pub fn open_calls(&self) -> usize {
        self.calls.len()
    }

    fn find(&self, call: Call) -> Option<&Open<T>> {
        self.calls.get(index(call)).filter(|open| open.life == life(call))
    }

    fn find_mut(&mut self, call: Call) -> Option<&mut Open<T>> {
        self.calls.get_mut(index(call)).filter(|open| open.life == life(call))
    }

    fn tidy(&mut self, call: Call) {
        if self.find(call).is_some_and(|open| !open.owed && matches!(open.waiter, Waiter::Left)) {
            self.calls.remove(index(call));
        }
    }
}

pub(super) fn number(index: usize, life: u32) -> Call {
    u64::from(life) << 32 | index as u64
}

fn index(call: Call) -> usize {
    (call & u64::from(u32::MAX)) as usize
}

fn life(call: Call) -> u32 {
    (call >> 32) as u32
}
