//! A lane of whole messages whose descriptors the kernel carries (`sockmap`).

use std::io;
use std::time::Duration;

use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::{ReceivedMessage, SockmapRecord, SockmapSocket, WakeupCell};

use super::message::Messages;
use super::{Lane, Seat};

/// Messages, and the socket that brings them.
pub(super) struct Carried {
    messages: Messages,
    wire: SockmapSocket,
    buffer: Vec<u8>,
}

impl Carried {
    pub(super) fn new(seat: &Seat) -> io::Result<Self> {
        let wire = seat
            .wire
            .clone()
            .ok_or_else(|| io::Error::other("no socket came with the seat"))?;
        let messages = Messages::over(seat, &wire);
        Ok(Self {
            messages,
            wire,
            buffer: vec![0; 64 * RECORD_BYTES],
        })
    }
}

impl Lane for Carried {
    type Item = ReceivedMessage;

    fn take(&mut self) -> io::Result<Option<ReceivedMessage>> {
        self.messages.take()
    }

    fn pass(&mut self, item: ReceivedMessage) -> io::Result<()> {
        self.messages.pass(item)
    }

    fn make(&mut self, number: u64) -> io::Result<()> {
        self.messages.make(number)
    }

    fn end(&mut self, item: ReceivedMessage) -> (u64, u16) {
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
    fn wait(&mut self, _: &mut WakeupCell, _: Option<Duration>) {
        self.messages.look(); // also when the circle is closed: only what was looked at ends
        if self.ready() {
            return;
        }
        let Ok(bytes) = self.wire.read_records(&mut self.buffer, true) else {
            return;
        };
        let (records, _) = self.buffer[..bytes].as_chunks::<RECORD_BYTES>();
        records
            .iter()
            .map(SockmapRecord::from_bytes)
            .for_each(|record| self.messages.deliver(&record));
    }
}
