//! What goes out on a channel, as room allows: words about the peer's bodies, first messages, bodies in parts.

use std::sync::Arc;

use nearpath_shm::{Draft, End, Envelope, Kind, Member, envelope};

use super::Link;
use crate::outflow::window;
use crate::post::flow::Flow;
use crate::post::outbox::{Progress, claim, has_room, send};
use crate::post::words::Unsent;

/// All that there is of a body, and will be: a receiver that puts it together needs no window.
pub(super) const ALL: u64 = u64::MAX;

impl Link {
    /// A body whose first message has gone.
    pub(in crate::post) fn flow(&mut self, call: u64, flow: Flow) {
        self.flows.insert(call, flow);
        self.busy.push_back(call);
    }

    /// The flow of a body to which its writer hands something over; then [`Link::stir`].
    pub(in crate::post) fn flow_mut(&mut self, call: u64) -> Option<&mut Flow> {
        self.flows.get_mut(&call)
    }

    /// A flow has something to send again.
    pub(in crate::post) fn stir(&mut self, call: u64) {
        if !self.busy.contains(&call) {
            self.busy.push_back(call);
        }
    }

    /// Whether something waits to be sent.
    pub(in crate::post) fn is_busy(&self) -> bool {
        !self.outbox.is_empty() || !self.busy.is_empty() || !self.untold.is_empty()
    }

    /// Sends what can be sent of what waits. Who sleeps with the rest asks before that to be rung: [`Link::ready`].
    pub(in crate::post) fn pump(&mut self, member: &Arc<Member>) {
        loop {
            self.wants_slot = false;
            self.pump_words(member);
            self.pump_letters(member);
            self.pump_flows(member);
            if !self.is_busy() || self.wants_slot || !self.may_go(member) {
                return;
            }
        }
    }

    /// What the peer is told of its bodies: first of all, for it may wait for that with all that it has.
    fn pump_words(&mut self, member: &Arc<Member>) {
        while let Some((&call, &let_go)) = self.untold.first_key_value() {
            match word(&mut self.end, member, call, let_go) {
                Err(Unsent::NoCredit) => return,
                Err(Unsent::NoSlot) => return self.wants_slot = true,
                Ok(()) | Err(_) => drop(self.untold.remove(&call)),
            }
        }
    }

    /// An answer that cannot be written goes as an error: its caller waits.
    fn pump_letters(&mut self, member: &Arc<Member>) {
        while let Some(letter) = self.outbox.front_mut() {
            let call = letter.envelope.call;
            match letter.advance(&mut self.end, member) {
                Ok(flow) => {
                    self.outbox.pop_front();
                    match flow {
                        Some(flow) => self.flow(call, flow),
                        None => self.answered(call),
                    }
                }
                Err(Progress::Hopeless) => match letter.excuse() {
                    Some(excuse) => *letter = excuse,
                    None => drop(self.outbox.pop_front()),
                },
                Err(why) => return self.wants_slot |= why == Progress::WantsSlot,
            }
        }
    }

    fn pump_flows(&mut self, member: &Arc<Member>) {
        let window = window(self.flows.len());
        for _ in 0..self.busy.len() {
            let Some(call) = self.busy.pop_front() else { return };
            let Some(flow) = self.flows.get_mut(&call) else { continue };
            match flow.advance(&mut self.end, member, window) {
                Progress::WantsWriter => {}
                Progress::WantsRoom => self.busy.push_back(call),
                Progress::WantsSlot => {
                    self.busy.push_back(call);
                    self.wants_slot = true;
                }
                Progress::Gone => {
                    self.flows.remove(&call);
                    self.answered(call);
                }
                Progress::Hopeless => drop(self.flows.remove(&call)),
            }
        }
    }

    /// A strict peer has let go of so many messages of this body: more of it may go.
    pub(super) fn hear(&mut self, call: u64, let_go: u64) {
        if let Some(flow) = self.flows.get_mut(&call) {
            flow.hear(let_go);
            self.stir(call);
        }
    }

    /// A strict peer is to be told, with the next [`Link::pump`], that so many messages of its body have been let go of. Of
    /// several words that wait the largest counts.
    pub(in crate::post) fn tell(&mut self, call: u64, let_go: u64) {
        let untold = self.untold.entry(call).or_default();
        *untold = let_go.max(*untold);
    }

    /// The same for a body that nobody reads.
    pub(in crate::post) fn tell_all(&mut self, call: u64) {
        self.tell(call, ALL);
    }

    pub(super) fn may_go(&mut self, member: &Arc<Member>) -> bool {
        self.end.collect(); // what a strict peer has taken is no longer with it
        if (!self.outbox.is_empty() || !self.untold.is_empty()) && has_room(&mut self.end, false) {
            return true;
        }
        let Self { busy, flows, end, .. } = self;
        let window = window(flows.len());
        let mut due = |call: &u64| flows.get_mut(call).is_some_and(|flow| flow.may_go(member, window));
        has_room(end, true) && busy.iter().any(&mut due)
    }
}

/// Says how many messages of a body have been let go of.
fn word(end: &mut End, member: &Arc<Member>, call: u64, let_go: u64) -> Result<(), Unsent> {
    let draft = Draft::new(claim(member, envelope::body_at(0), 0)?);
    let envelope = Envelope { total: let_go, ..Envelope::new(Kind::Taken, call) };
    send(end, draft, envelope, &[], false)
}
