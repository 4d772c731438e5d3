//! An end in a strict domain: it writes in its own party's pool alone, and reads its peer's by copying.
//!
//! No lease goes over. The receiver copies a message before it moves `head`; so what lies before `head` is the sender's
//! again, and its ledger, private memory like its lease words, says which slots that is. Nobody else can free, take or change
//! them.

use super::{End, NotSent, ReceiveFault, Side, State};
use crate::descriptor::{BadDescriptor, Descriptor};
use crate::foreign::Foreign;
use crate::ledger::Ledger;
use crate::member::NotAccepted;
use crate::message::{Message, Outgoing};
use crate::sync::{Ordering, fence};

/// Messages underway from which on a sender looks at every send whether some have been taken: before that, once a batch.
const SLACK: usize = 16;

/// What a strict end has besides.
#[derive(Debug)]
pub(super) struct Strict {
    /// The peer's pool.
    pub(super) source: Foreign,
    ledger: Ledger,
}

impl End {
    /// The same end in a strict domain: `source` is the peer's pool, and the own member's pool nobody else can write
    /// ([`crate::Pool::create_own`]).
    pub fn strictly(self, source: Foreign) -> Self {
        Self { strict: Some(Strict { source, ledger: Ledger::default() }), ..self }
    }

    pub(super) fn send_own(&mut self, message: Outgoing) -> Result<(), NotSent> {
        let Outgoing { lease, offset, length } = message;
        let descriptor = Descriptor { slot: lease.slot(), generation: lease.generation(), offset, length };
        if let Err(fault) = self.producer.push(descriptor) {
            let why = self.not_pushed(fault);
            return Err(NotSent { why, message: Some(Outgoing { lease, offset, length }) });
        }
        self.line.as_mut().into_iter().for_each(|line| line.push(descriptor));
        if let Some(strict) = &mut self.strict {
            strict.ledger.note(lease, offset, length);
            if strict.ledger.len() >= SLACK {
                self.collect(); // who sends without an end to its batch has its slots back, too
            }
        }
        self.counters.sent(length);
        self.pushed = true;
        Ok(())
    }

    /// The peer's slot may be given back, now that it was copied. What was copied while the peer took its slots back, because it
    /// believes this party dead or the channel broken, is no message.
    pub(super) fn taken(&mut self, copy: Result<Vec<u8>, BadDescriptor>) -> Result<Option<Message>, ReceiveFault> {
        fence(Ordering::Acquire); // bytes that were written after the close are seen only with the close
        let state = self.channel.state();
        self.consumer.commit();
        self.popped = true;
        if lost(state, self.side) {
            return Err(ReceiveFault::Closed(state));
        }
        Ok(Some(Message::copied(copy.map_err(NotAccepted::from)?)?))
    }

    /// Frees the slots of what the peer has taken. By itself with every [`End::flush`]; who finds no slot may ask for it.
    pub fn collect(&mut self) -> u32 {
        let Some(strict) = self.strict.as_mut().filter(|strict| !strict.ledger.is_empty()) else { return 0 };
        // An impossible head: the peer broke the channel, and what it still reads is its own loss.
        let unread = self.producer.room().map_or(0, |room| self.channel.capacity() - room);
        strict.ledger.settle(unread)
    }

    /// Frees what was sent, when nobody reads it any more.
    pub(super) fn recall_own(&mut self) -> u32 {
        let peer = match self.side {
            Side::Caller => Side::Callee,
            Side::Callee => Side::Caller,
        };
        if !lost(self.channel.state(), peer) {
            return self.collect(); // the peer lives, and reads on
        }
        self.strict.as_mut().map_or(0, |strict| strict.ledger.settle(0))
    }

    /// Whether this end can be let go of: nothing that it sent is still to be read in the own pool. Always true in a shared
    /// domain, where what was sent belongs to the pool. Before sleeping: [`End::settles`].
    pub fn settled(&mut self) -> bool {
        if !self.is_unsettled() {
            return true;
        }
        self.recall_own();
        !self.is_unsettled()
    }

    /// Whether this end, which could not be let go of, can be now. When not, the peer is asked to ring when it has taken
    /// something: what to look at before sleeping.
    pub fn settles(&mut self) -> bool {
        if !self.is_unsettled() {
            return false;
        }
        let _ = self.producer.starve();
        self.settled()
    }

    fn is_unsettled(&self) -> bool {
        self.strict.as_ref().is_some_and(|strict| !strict.ledger.is_empty())
    }
}

/// Whether the channel is of no use to this side any more: broken, or closed because this side is dead.
fn lost(state: State, side: Side) -> bool {
    match state {
        State::Open | State::Withdrawn => false,
        State::CallerDead => side == Side::Caller,
        State::CalleeDead => side == Side::Callee,
        State::Broken => true,
    }
}
