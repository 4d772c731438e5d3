//! An end over a wire: the kernel carries its descriptors and its wake-ups; the ring counts the credits.

use super::{End, State};
use crate::wire::{Line, Record, Wire};

impl End {
    /// The same end over a wire: the kernel carries its descriptors, which [`End::deliver`] takes, and its wake-ups. `number`
    /// is the channel's in the domain.
    pub fn over(self, wire: Wire, number: u32) -> Self {
        let desk = self.desk.over(wire.clone(), number);
        Self { line: Some(Line::new(wire, number)), desk, ..self }
    }

    /// Over a wire, before it is read: what is read now is all that a peer had to say that is dead by now. Whether it is.
    pub fn look(&mut self) -> bool {
        let state = self.channel.state();
        self.line.as_mut().into_iter().for_each(|line| line.seen = state);
        state > State::Withdrawn
    }

    /// Over a wire: a record of this channel that it brought.
    pub fn deliver(&mut self, record: &Record) {
        let capacity = self.channel.capacity() as usize;
        let Some(line) = &mut self.line else { return };
        let overdone = line.came.len() >= capacity || record.from != u32::from(self.peer.get());
        if record.is_bell() {
            return;
        }
        match overdone {
            true => self.break_off(),
            false => line.came.push_back(record.descriptor),
        }
    }
}
