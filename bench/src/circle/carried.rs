//! A lane of whole messages whose descriptors the kernel carries (`sockmap`).

use std::io;
use std::time::Duration;

use nearpath_shm::wire::RECORD;
use nearpath_shm::{Desk, Message, Record, Wire};

use super::message::Messages;
use super::{Lane, Seat};

/// Messages, and the socket that brings them.
pub(super) struct Carried {
    messages: Messages,
    wire: Wire,
    buffer: Vec<u8>,
}

impl Carried {
    pub(super) fn new(seat: &Seat) -> io::Result<Self> {
        let wire = seat.wire.clone().ok_or_else(|| io::Error::other("no socket came with the seat"))?;
        let messages = Messages::over(seat, &wire);
        Ok(Self { messages, wire, buffer: vec![0; 64 * RECORD] })
    }
}

impl Lane for Carried {
    type Item = Message;

    fn take(&mut self) -> io::Result<Option<Message>> {
        self.messages.take()
    }

    fn pass(&mut self, item: Message) -> io::Result<()> {
        self.messages.pass(item)
    }

    fn make(&mut self, number: u64) -> io::Result<()> {
        self.messages.make(number)
    }

    fn end(&mut self, item: Message) -> (u64, u16) {
        self.messages.end(item)
    }

    fn ready(&mut self) -> bool {
        self.messages.ready()
    }

    fn flush(&mut self) {
        self.messages.flush();
    }

    fn core_before(&self) -> u32 {
        self.messages.core_before()
    }

    /// Sleeps in the read, as a party does.
    fn wait(&mut self, _: &mut Desk, _: Option<Duration>) {
        self.messages.look(); // also when the circle is closed: only what was looked at ends
        if self.ready() {
            return;
        }
        let Ok(bytes) = self.wire.fetch(&mut self.buffer, true) else { return };
        let (records, _) = self.buffer[..bytes].as_chunks::<RECORD>();
        records.iter().map(Record::from_bytes).for_each(|record| self.messages.deliver(&record));
    }
}
