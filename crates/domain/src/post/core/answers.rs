//! Answers that this party gives.

use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::task::Waker;
use std::time::Duration;

use nearpath_shm::envelope::flag;
use nearpath_shm::{Envelope, Kind, Member};

use super::super::link::{Link, Taken};
use super::super::outbox::{Letter, Whole, begin};
use super::super::payload::{Load, Payload};
use super::super::words::{Answer, CallError, Unsent};
use super::Core;
use crate::clock::Nanos;

impl Core {
    /// Answers a call that came in. Nothing happens when the caller has gone.
    pub(in crate::post) fn answer(&mut self, channel: u32, call: u64, answer: Answer, now: Nanos) {
        if let Some(link) = self.links.get_mut(&channel) {
            if link.taken.get(&call).is_some_and(|taken| taken.begun.is_some()) {
                break_off(link, call); // it had begun, and was not finished
                link.pump(&self.member);
            } else {
                answer_on(link, &self.member, call, answer, now);
            }
            self.unrung = true;
        }
        self.wind_up();
    }

    #[cfg(feature = "tokio")]
    /// Whether the caller has given the call up, or is gone; else `waker` is told when it does.
    pub(in crate::post) fn given_up(&mut self, channel: u32, call: u64, waker: &Waker) -> bool {
        let taken = self.links.get_mut(&channel).and_then(|link| link.taken.get_mut(&call));
        let Some(taken) = taken.filter(|taken| !taken.cancelled) else { return true };
        taken.waker = Some(waker.clone());
        false
    }

    /// Begins an answer of which more will be handed over; false when nobody wants it.
    pub(in crate::post) fn begin_answer(
        &mut self,
        channel: u32,
        call: u64,
        answer: Answer,
        total: Option<u64>,
    ) -> bool {
        let Some(link) = self.links.get_mut(&channel) else { return false };
        let Some(taken) = link.taken.get_mut(&call).filter(|taken| !taken.cancelled && taken.begun.is_none()) else {
            return false;
        };
        taken.begun = Some(answer.status);
        send_answer(link, &self.member, call, answer, Whole::Open(total));
        self.unrung = true;
        true
    }
}

/// Owes an answer; false when it is owed already.
pub(super) fn take_on(link: &mut Link, call: u64, now: Nanos) -> bool {
    link.end.counters().opened();
    link.taken.insert(call, Taken { since: now, cancelled: false, begun: None, waker: None }).is_none()
}

pub(super) fn answer_on(link: &mut Link, member: &Arc<Member>, call: u64, mut answer: Answer, now: Nanos) {
    let Some(taken) = link.taken.remove(&call) else { return };
    link.break_part(call, CallError::BrokenOff);
    if taken.cancelled {
        answer = Answer { status: 499, platform: true, ..Answer::default() };
    }
    let took = Duration::from_nanos(now.saturating_sub(taken.since));
    link.end.counters().closed(took, answer.status >= 500 || taken.cancelled);
    send_answer(link, member, call, answer, Whole::Here);
}

/// Sends it now if nothing waits before it; else when there is room.
pub(super) fn send_answer(link: &mut Link, member: &Arc<Member>, call: u64, answer: Answer, whole: Whole) {
    let flags = if answer.platform { flag::PLATFORM } else { 0 };
    let Answer { status, reason, fields, mut body, .. } = answer;
    let envelope = Envelope { flags, status, reason, ..Envelope::new(Kind::Answer, call) };
    if link.outbox.is_empty() {
        let borrowed: Vec<(&str, &[u8])> = fields.iter().map(|(name, value)| (&**name, &**value)).collect();
        match begin(&mut link.end, member, envelope, &borrowed, &mut Load::Given(&mut body), whole) {
            Ok(None) => return,
            Ok(Some(flow)) => link.flow(call, flow),
            Err(Unsent::NoCredit | Unsent::NoSlot | Unsent::Head) => {
                link.outbox.push_back(Letter::new(envelope, fields, body, whole))
            }
            Err(Unsent::Lost) => link.outbox.push_back(Letter::lost(envelope)),
            Err(_) => return,
        }
    } else {
        link.outbox.push_back(Letter::new(envelope, fields, body, whole));
    }
    link.pump(member);
}

/// Ends an answer that had begun: with a `cancel` in place of the rest, or as an error if nothing of it has gone.
pub(super) fn break_off(link: &mut Link, call: u64) {
    let seen = link.give_up(call);
    let gave_up = Envelope { status: 499, flags: flag::PLATFORM, ..Envelope::new(Kind::Answer, call) };
    link.outbox.push_back(match seen {
        true => Letter::cancel(call),
        false => Letter::new(gave_up, Vec::new(), Payload::default(), Whole::Here),
    });
    link.settle(call, true);
}
