//! Channel end over a socket: the kernel carries descriptors and wakeups; the ring counts the
//! credits.

use super::{ChannelEnd, ChannelState};
use crate::sockmap::{SockmapEnd, SockmapRecord, SockmapSocket};

impl ChannelEnd {
    /// Switches the end to a socket: the kernel carries its descriptors and wakeups;
    /// [`ChannelEnd::deliver_record`] takes them. `number` is the channel number in the domain.
    pub fn via_sockmap(self, wire: SockmapSocket, number: u32) -> Self {
        let cell = self.peer_signal.via_sockmap(wire.clone(), number);
        Self {
            sockmap: Some(SockmapEnd::new(wire, number)),
            peer_signal: cell,
            ..self
        }
    }

    /// Observes the state before the socket is read: the next read delivers all that a dead peer
    /// had sent. Returns true if it is dead.
    pub fn observe_state(&mut self) -> bool {
        let state = self.channel.state();
        self.sockmap
            .as_mut()
            .into_iter()
            .for_each(|line| line.state_before_read = state);
        state > ChannelState::Withdrawn
    }

    /// Delivers a record of this channel that the socket received.
    pub fn deliver_record(&mut self, record: &SockmapRecord) {
        let capacity = self.channel.capacity() as usize;
        let Some(line) = &mut self.sockmap else {
            return;
        };
        // More records than ring entries were sent without credits. The kernel writes `sender` (ADR
        // 0011), so a wrong one is not the peer's.
        let is_invalid =
            line.received.len() >= capacity || record.sender != u32::from(self.peer_id.get());
        if record.is_wakeup() {
            return;
        }
        match is_invalid {
            true => self.break_channel(),
            false => line.received.push_back(record.descriptor),
        }
    }
}
