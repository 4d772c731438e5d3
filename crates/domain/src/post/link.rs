//! One channel from the party's side: its end, what waits to be sent, and what has come in part.

mod incoming;
mod outgoing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::{End, Kind, Member, Side};
use nearpath_types::InstanceId;

use super::flow::Flow;
use super::outbox::Letter;
use super::rest::Feed;
use super::words::{CallError, Caller};
use crate::clock::{self, Nanos};
use incoming::Partial;

pub(super) use incoming::{Came, Taking};

/// A channel that is open, or being wound up.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) end: End,
    pub(super) side: Side,
    /// The one that calls here; for a callee.
    pub(super) caller: Arc<Caller>,
    pub(super) instance: InstanceId,
    /// First messages that wait, in order.
    pub(super) outbox: VecDeque<Letter>,
    /// Bodies that are on their way, by call, and those of them with something to send, in turn.
    flows: BTreeMap<u64, Flow>,
    busy: VecDeque<u64>,
    pub(super) wants_slot: bool,
    parts: HashMap<u64, Partial>,
    /// Calls whose answers are read as they come, whatever the party does otherwise.
    as_they_come: BTreeSet<u64>,
    /// What a strict peer is to be told, by call: so many messages of its body have been let go of.
    untold: BTreeMap<u64, u64>,
    /// The body that has to be read before more is taken from this channel.
    clogged: Option<Arc<Feed>>,
    /// Calls taken here and not answered, with the time when they came: for a callee.
    pub(super) taken: HashMap<u64, Taken>,
    /// No calls here.
    pub(super) events_only: bool,
    pub(super) closed: bool,
    pub(super) withdrawn: bool,
}

/// A call that this party owes an answer.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) since: Nanos,
    pub(super) cancelled: bool,
    /// Its answer has begun: the status that it has.
    pub(super) begun: Option<u16>,
    pub(super) waker: Option<Waker>,
}

impl Link {
    pub(super) fn new(end: End, side: Side, caller: Arc<Caller>, instance: InstanceId) -> Self {
        Self {
            end,
            side,
            caller,
            instance,
            outbox: VecDeque::new(),
            flows: BTreeMap::new(),
            busy: VecDeque::new(),
            wants_slot: false,
            parts: HashMap::new(),
            as_they_come: BTreeSet::new(),
            untold: BTreeMap::new(),
            clogged: None,
            taken: HashMap::new(),
            events_only: false,
            closed: false,
            withdrawn: false,
        }
    }

    /// Closes the channel for a peer that broke the rules.
    pub(super) fn break_off(&mut self) {
        self.end.break_off();
        self.closed = true;
    }

    /// The last part of an answer has gone that began before it was complete.
    fn answered(&mut self, call: u64) {
        if self.taken.get(&call).is_some_and(|taken| taken.begun.is_some()) {
            self.settle(call, false);
        }
    }

    /// Nothing is owed for this call any more.
    pub(super) fn settle(&mut self, call: u64, broken: bool) {
        let Some(mut taken) = self.taken.remove(&call) else { return };
        taken.waker.take().into_iter().for_each(Waker::wake);
        self.break_part(call, CallError::BrokenOff);
        let took = Duration::from_nanos(clock::now().saturating_sub(taken.since));
        self.end.counters().closed(took, broken || taken.begun.is_some_and(|status| status >= 500));
    }

    /// Takes back what has not been sent of a call. Whether the peer had seen some of it, but not all.
    pub(super) fn give_up(&mut self, call: u64) -> bool {
        self.as_they_come.remove(&call);
        if !self.outbox.is_empty() {
            self.outbox.retain(|letter| letter.envelope.call != call || letter.envelope.kind == Kind::Cancel);
        }
        self.flows.remove(&call).is_some()
    }

    /// What to look at before sleeping, after the party has said that it sleeps. Only here the peer is asked to ring when it has
    /// taken something: it answers once, and to a party that is awake not at all. By the time that party sleeps the room which
    /// the peer had made then may be full again.
    pub(super) fn ready(&mut self, member: &Arc<Member>) -> bool {
        let waits = self.is_busy() && !self.wants_slot;
        if waits {
            self.end.starve();
        }
        waits && self.may_go(member) || self.settles() || self.end.ready() && !self.is_clogged()
    }

    /// Whether a link that is wound up can end since the last turn: its peer has read what lay in this party's pool.
    fn settles(&mut self) -> bool {
        self.withdrawn && self.side == Side::Caller && self.is_idle() && self.end.settles()
    }

    /// Whether a call can be made here; before sleeping: else the peer is asked to ring when it has taken something.
    #[cfg(feature = "tokio")]
    pub(super) fn has_credit_or_starves(&mut self) -> bool {
        self.end.starve();
        self.has_credit()
    }

    /// Whether a call can be made here.
    pub(super) fn has_credit(&mut self) -> bool {
        !self.closed && self.outbox.is_empty() && self.end.credits() > 0
    }

    /// Whether nothing is owed to anybody here, from this side.
    pub(super) fn is_idle(&self) -> bool {
        self.outbox.is_empty() && self.flows.is_empty() && self.taken.is_empty() && self.parts.is_empty()
    }
}
