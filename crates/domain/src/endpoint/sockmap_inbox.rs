//! Receiving socket of sockmap delivery: one socket for all channels, which also wakes the
//! endpoint.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::{SockmapRecord, SockmapSocket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::PeerLink;

/// Bytes per read: one system call for up to 256 descriptors.
const READ_BYTES: usize = 256 * RECORD_BYTES;
/// Maximum number of records that wait for the node to announce their channel.
const MAX_EARLY_RECORDS: usize = 4096;

/// Receiving socket; see the module documentation.
#[derive(Debug)]
pub(super) struct SockmapInbox {
    pub(super) socket: SockmapSocket,
    buffer: Box<[u8]>,
    /// Bytes in the buffer that a wait received.
    buffered: usize,
    /// Records of channels that the node has not announced yet.
    early_records: Vec<SockmapRecord>,
    /// The node closed its end: nothing is received or sent any more.
    pub(super) closed: bool,
    max_wait: Duration,
}

impl SockmapInbox {
    /// Wraps a socket whose blocking reads last at most `max_wait`.
    pub(super) fn new(wire: SockmapSocket, max_wait: Duration) -> Self {
        let buffer = vec![0; READ_BYTES].into_boxed_slice();
        Self {
            socket: wire,
            buffer,
            buffered: 0,
            early_records: Vec::new(),
            closed: false,
            max_wait,
        }
    }

    /// Receives all records and dispatches them to the links.
    pub(super) fn dispatch_received(&mut self, links: &mut BTreeMap<u32, PeerLink>) {
        // States before the socket: what a peer sent before it died is readable by then.
        let closing = links
            .values_mut()
            .fold(false, |closing, link| link.end.observe_state() | closing);
        let waited = std::mem::take(&mut self.buffered);
        self.dispatch_records(waited, links);
        if waited > 0 && waited < READ_BYTES && !closing {
            return; // the last wait drained the socket
        }
        while !self.closed && self.read_once(false) {
            let bytes = std::mem::take(&mut self.buffered);
            self.dispatch_records(bytes, links);
            if bytes < READ_BYTES {
                return;
            }
        }
    }

    /// Reads once into the buffer; false when nothing is there.
    fn read_once(&mut self, wait: bool) -> bool {
        match self.socket.read_records(&mut self.buffer, wait) {
            Ok(0) => self.closed = true,
            Ok(bytes) => self.buffered = bytes,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(_) => self.closed = true,
        }
        self.buffered > 0
    }

    fn dispatch_records(&mut self, bytes: usize, links: &mut BTreeMap<u32, PeerLink>) {
        // The node only sends zeros, the kernel only whole records: a read never mixes them.
        let (records, _) = self.buffer[..bytes].as_chunks::<RECORD_BYTES>();
        for record in records
            .iter()
            .map(SockmapRecord::from_bytes)
            .filter(|record| record.channel != 0)
        {
            match links.get_mut(&record.channel) {
                Some(link) => link.end.deliver_record(&record),
                // Bounded: records of a channel that is never announced must not fill the memory.
                None if self.early_records.len() < MAX_EARLY_RECORDS && !record.is_wakeup() => {
                    self.early_records.push(record)
                }
                None => {}
            }
        }
    }

    /// Takes the records that arrived before the channel was announced.
    pub(super) fn take_early_records(&mut self, channel: u32) -> Vec<SockmapRecord> {
        self.early_records
            .extract_if(.., |record| record.channel == channel)
            .collect()
    }

    /// Waits until the socket is readable.
    pub(super) fn wait_readable(&mut self, timeout: Option<Duration>) {
        if self.closed || self.buffered > 0 {
            return;
        }
        // The socket's own receive timeout is `max_wait`: only shorter waits need a poll.
        match timeout.filter(|timeout| *timeout < self.max_wait) {
            None => _ = self.read_once(true),
            Some(timeout) => {
                let timeout = Timespec::try_from(timeout).ok();
                let _ = poll(
                    &mut [PollFd::new(&self.socket, PollFlags::IN)],
                    timeout.as_ref(),
                );
            }
        }
    }
}
