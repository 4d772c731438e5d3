//! A lane of whole messages whose descriptors the kernel carries (`sockmap`).

use std::io;
use std::time::Duration;

use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::{ReceivedMessage, SockmapRecord, SockmapSocket, WakeupCell};

use super::message::MessageLane;
use super::{RingEndpoint, RingLane};

/// Messages, and the socket that brings them.
pub(super) struct SockmapLane {
    messages: MessageLane,
    wire: SockmapSocket,
    buffer: Vec<u8>,
}

impl SockmapLane {
    pub(super) fn new(seat: &RingEndpoint) -> io::Result<Self> {
        let wire = seat
            .wire
            .clone()
            .ok_or_else(|| io::Error::other("no socket came with the seat"))?;
        let messages = MessageLane::over_sockmap(seat, &wire);
        Ok(Self {
            messages,
            wire,
            // As many records as can be under way (RING_CAPACITY), so one read takes all.
            buffer: vec![0; 64 * RECORD_BYTES],
        })
    }
}

impl RingLane for SockmapLane {
    type Item = ReceivedMessage;

    fn take_item(&mut self) -> io::Result<Option<ReceivedMessage>> {
        self.messages.take_item()
    }

    fn pass_on(&mut self, item: ReceivedMessage) -> io::Result<()> {
        self.messages.pass_on(item)
    }

    fn make_item(&mut self, number: u64) -> io::Result<()> {
        self.messages.make_item(number)
    }

    fn finish_item(&mut self, item: ReceivedMessage) -> (u64, u16) {
        self.messages.finish_item(item)
    }

    fn is_ready(&mut self) -> bool {
        self.messages.is_ready()
    }

    fn flush_batch(&mut self) {
        self.messages.flush_batch();
    }

    fn core_before(&self) -> u32 {
        self.messages.core_before()
    }

    /// Sleeps in the read, as a party does.
    fn wait_ready(&mut self, _: &mut WakeupCell, _: Option<Duration>) {
        self.messages.poll_messages(); // also when the circle is closed: only what was looked at ends
        // Tested after the poll: with a message at hand, a blocking read may never return.
        if self.is_ready() {
            return;
        }
        let Ok(bytes) = self.wire.read_records(&mut self.buffer, true) else {
            return;
        };
        let (records, _) = self.buffer[..bytes].as_chunks::<RECORD_BYTES>();
        records
            .iter()
            .map(SockmapRecord::from_bytes)
            .for_each(|record| self.messages.handle_record(&record));
    }
}
