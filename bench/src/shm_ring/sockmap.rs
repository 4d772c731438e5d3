//! A lane of complete messages whose descriptors pass through sockmap.

use std::io;
use std::time::Duration;

use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::{ReceivedMessage, SockmapRecord, SockmapSocket, WakeupCell};

use super::message::MessageLane;
use super::{RingEndpoint, RingLane};

/// Messages, and the socket with their records.
pub(super) struct SockmapLane {
    messages: MessageLane,
    sockmap: SockmapSocket,
    buffer: Vec<u8>,
}

impl SockmapLane {
    pub(super) fn new(endpoint: &RingEndpoint) -> io::Result<Self> {
        let sockmap = endpoint
            .sockmap
            .clone()
            .ok_or_else(|| io::Error::other("the endpoint has no sockmap socket"))?;
        let messages = MessageLane::over_sockmap(endpoint, &sockmap);
        Ok(Self {
            messages,
            sockmap,
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

    fn forward_item(&mut self, item: ReceivedMessage) -> io::Result<()> {
        self.messages.forward_item(item)
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

    fn previous_core(&self) -> u32 {
        self.messages.previous_core()
    }

    /// Waits in the read, like an endpoint.
    fn wait_ready(&mut self, _: &mut WakeupCell, _: Option<Duration>) {
        self.messages.poll_messages(); // also when the ring is closed: only polled messages end
        // Tested after the poll: with a message at hand, a blocking read may never return.
        if self.is_ready() {
            return;
        }
        let Ok(bytes) = self.sockmap.read_records(&mut self.buffer, true) else {
            return;
        };
        let (records, _) = self.buffer[..bytes].as_chunks::<RECORD_BYTES>();
        records
            .iter()
            .map(SockmapRecord::from_bytes)
            .for_each(|record| self.messages.handle_record(&record));
    }
}
