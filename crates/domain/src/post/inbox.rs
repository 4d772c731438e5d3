//! Where the kernel brings a party its descriptors (`sockmap`): one socket for all its channels, which is its bell as well.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use nearpath_shm::wire::RECORD;
use nearpath_shm::{Record, Wire};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::link::Link;

/// Bytes that one read takes: so many descriptors for one look at the kernel.
const BATCH: usize = 256 * RECORD;
/// Records that may wait for the node to tell of their channel.
const STRAYS: usize = 4096;

/// See the module.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) wire: Wire,
    buffer: Box<[u8]>,
    /// Bytes of the buffer that a wait has brought.
    waited: usize,
    /// Records of channels that the node has not told of yet.
    strays: Vec<Record>,
    /// The node has closed its end: nothing comes any more, nothing goes.
    pub(super) closed: bool,
    patience: Duration,
}

impl Inbox {
    /// A wait ends after `patience` at the latest, as the wire was told.
    pub(super) fn new(wire: Wire, patience: Duration) -> Self {
        let buffer = vec![0; BATCH].into_boxed_slice();
        Self { wire, buffer, waited: 0, strays: Vec::new(), closed: false, patience }
    }

    /// Takes what is there and gives it to the links.
    pub(super) fn fetch(&mut self, links: &mut BTreeMap<u32, Link>) {
        // First the states, then the wire: what a peer sent before it died is on the wire already.
        let closing = links.values_mut().fold(false, |closing, link| link.end.look() | closing);
        let waited = std::mem::take(&mut self.waited);
        self.sort(waited, links);
        if waited > 0 && waited < BATCH && !closing {
            return; // that was all, a moment ago
        }
        while !self.closed && self.read(false) {
            let bytes = std::mem::take(&mut self.waited);
            self.sort(bytes, links);
            if bytes < BATCH {
                return;
            }
        }
    }

    /// Reads once, into the buffer; false when nothing is there.
    fn read(&mut self, wait: bool) -> bool {
        match self.wire.fetch(&mut self.buffer, wait) {
            Ok(0) => self.closed = true,
            Ok(bytes) => self.waited = bytes,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => self.closed = true,
        }
        self.waited > 0
    }

    fn sort(&mut self, bytes: usize, links: &mut BTreeMap<u32, Link>) {
        // The node only sends zeros, the kernel only brings whole records: however a read is cut, it is one or the other.
        let (records, _) = self.buffer[..bytes].as_chunks::<RECORD>();
        for record in records.iter().map(Record::from_bytes).filter(|record| record.channel != 0) {
            match links.get_mut(&record.channel) {
                Some(link) => link.end.deliver(&record),
                None if self.strays.len() < STRAYS && !record.is_bell() => self.strays.push(record),
                None => {}
            }
        }
    }

    /// What came of a channel before the node told of it.
    pub(super) fn strays_of(&mut self, channel: u32) -> Vec<Record> {
        self.strays.extract_if(.., |record| record.channel == channel).collect()
    }

    /// Waits until something comes.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) {
        if self.closed || self.waited > 0 {
            return;
        }
        match timeout.filter(|timeout| *timeout < self.patience) {
            None => _ = self.read(true),
            Some(timeout) => {
                let timeout = Timespec::try_from(timeout).ok();
                let _ = poll(&mut [PollFd::new(&self.wire, PollFlags::IN)], timeout.as_ref());
            }
        }
    }
}
