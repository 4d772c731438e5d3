//! Descriptors that the kernel carries: a party's socket, and an end's part of it. `contract/memory.md`, "Record".
//!
//! The ring stays the record of what is underway: the producer pushes there first and takes its credits from there, the
//! consumer gives places back there, the node reads there after a death. But what a consumer takes is what its socket
//! brought, which the kernel let through by who sent it, and the socket is its bell.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::channel::State;
use crate::descriptor::Descriptor;

/// Bytes of a record.
pub const RECORD: usize = 32;

/// What travels: a descriptor, or with generation 0 only the wake-up that comes of receiving it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// What is handed over.
    pub descriptor: Descriptor,
    /// On which channel; 0: the node wakes the party.
    pub channel: u32,
    /// Who sent it, as the kernel says; what a sender writes here is written over.
    pub from: u32,
}

impl Record {
    /// As it is sent.
    pub fn to_bytes(&self) -> [u8; RECORD] {
        let mut bytes = [0; RECORD];
        bytes[..16].copy_from_slice(&self.descriptor.to_bytes());
        bytes[16..20].copy_from_slice(&self.channel.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.from.to_le_bytes());
        bytes
    }

    /// As it came.
    pub fn from_bytes(bytes: &[u8; RECORD]) -> Self {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let descriptor: [u8; 16] = std::array::from_fn(|at| bytes[at]);
        Self { descriptor: Descriptor::from_bytes(descriptor), channel: word(16), from: word(20) }
    }

    /// One that only wakes.
    pub fn bell(channel: u32) -> Self {
        Self { descriptor: Descriptor::from_words([0; 2]), channel, from: 0 }
    }

    /// Whether it only wakes.
    pub fn is_bell(&self) -> bool {
        self.channel == 0 || self.descriptor.generation == 0
    }
}

/// A party's socket. Clones are the same socket.
#[derive(Debug, Clone)]
pub struct Wire(Arc<OwnedFd>);

impl Wire {
    /// The socket that came with the welcome. A read that waits does so for at most `patience`.
    pub fn new(socket: OwnedFd, patience: Duration) -> io::Result<Self> {
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(patience))?;
        Ok(Self(Arc::new(socket)))
    }

    /// Sends whole records.
    pub(crate) fn send(&self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            match send(&*self.0, records, SendFlags::NOSIGNAL) {
                Ok(sent) => records = &records[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait_for_room()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// A send that does not block has found the kernel short of memory.
    fn wait_for_room(&self) -> io::Result<()> {
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], Some(&timeout))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Reads what is there; with `wait` until something is. Fewer bytes than fit: that was all. 0: the node has hung up.
    pub fn fetch(&self, into: &mut [u8], wait: bool) -> io::Result<usize> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        Ok(recv(&*self.0, into, flags)?.1)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An end's part of a wire: what goes with the next flush, and what has come.
#[derive(Debug)]
pub(crate) struct Line {
    wire: Wire,
    channel: u32,
    out: Vec<u8>,
    pub(crate) came: VecDeque<Descriptor>,
    /// The channel's state before the last look at the wire.
    pub(crate) seen: State,
}

impl Line {
    pub(crate) fn new(wire: Wire, channel: u32) -> Self {
        Self { wire, channel, out: Vec::new(), came: VecDeque::new(), seen: State::Open }
    }

    /// Goes with the next [`Line::flush`].
    pub(crate) fn push(&mut self, descriptor: Descriptor) {
        let record = Record { descriptor, channel: self.channel, from: 0 };
        self.out.extend_from_slice(&record.to_bytes());
    }

    /// Whether there is nothing to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.out.is_empty()
    }

    /// Sends what was pushed.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        let sent = self.wire.send(&self.out);
        self.out.clear();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::Slot;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn written_and_read(bytes: [u8; RECORD]) {
            let record = Record::from_bytes(&bytes);
            prop_assert_eq!(&record.to_bytes()[..24], &bytes[..24]);
            prop_assert_eq!(Record::from_bytes(&record.to_bytes()), record);
        }
    }

    #[test]
    fn as_the_contract_writes_it() {
        let descriptor = Descriptor { slot: Slot(0x1000_0002), generation: 3, offset: 8, length: 64 };
        let bytes = Record { descriptor, channel: 12, from: 7 }.to_bytes();
        let words = [0x1000_0002u32, 3, 8, 64, 12, 7, 0, 0];
        assert_eq!(bytes.to_vec(), words.map(u32::to_le_bytes).concat());
        assert!(Record::from_bytes(&[0; RECORD]).is_bell());
        assert!(!Record::from_bytes(&bytes).is_bell());
    }
}
