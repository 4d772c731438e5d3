//! Descriptors that the kernel carries: an endpoint's socket, and the part of it that one channel
//! end uses. `contract/memory.md`, "Record".
//!
//! The ring still records the messages in flight. The producer pushes there first and takes its
//! credits from there. The consumer frees entries there, and the node reads it after a death. But
//! the consumer receives from its socket, and the kernel admits records by sender. The socket also
//! wakes the endpoint.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use crate::channel::ChannelState;
use crate::descriptor::Descriptor;

/// Bytes of a record.
pub const RECORD_BYTES: usize = 32;

/// A descriptor on a socket, or with generation 0 a mere wakeup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SockmapRecord {
    /// The descriptor.
    pub descriptor: Descriptor,
    /// Channel number; 0: the node wakes the endpoint.
    pub channel: u32,
    /// Sender, as the kernel reports it: a value of the sender is overwritten.
    pub sender: u32,
}

impl SockmapRecord {
    /// Encodes the record.
    pub fn to_bytes(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes[..16].copy_from_slice(&self.descriptor.to_bytes());
        bytes[16..20].copy_from_slice(&self.channel.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.sender.to_le_bytes());
        bytes
    }

    /// Decodes a record.
    pub fn from_bytes(bytes: &[u8; RECORD_BYTES]) -> Self {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let descriptor: [u8; 16] = std::array::from_fn(|at| bytes[at]);
        Self {
            descriptor: Descriptor::from_bytes(descriptor),
            channel: word(16),
            sender: word(20),
        }
    }

    /// Creates a record that only wakes.
    pub fn wakeup(channel: u32) -> Self {
        Self {
            descriptor: Descriptor::from_words([0; 2]),
            channel,
            sender: 0,
        }
    }

    /// Returns true if the record only wakes.
    pub fn is_wakeup(&self) -> bool {
        self.channel == 0 || self.descriptor.generation == 0
    }
}

/// Socket of an endpoint. Clones share the socket.
#[derive(Debug, Clone)]
pub struct SockmapSocket(Arc<OwnedFd>);

impl SockmapSocket {
    /// Wraps the socket of the welcome message. A blocking read lasts at most `timeout`.
    pub fn new(socket: OwnedFd, timeout: Duration) -> io::Result<Self> {
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(timeout))?;
        Ok(Self(Arc::new(socket)))
    }

    /// Sends whole records.
    pub(crate) fn send_records(&self, mut records: &[u8]) -> io::Result<()> {
        while !records.is_empty() {
            // NOSIGNAL: a closed socket is an error here, not a SIGPIPE for the function's process.
            match send(&*self.0, records, SendFlags::NOSIGNAL) {
                Ok(sent) => records = &records[sent..],
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => self.wait_writable()?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Waits until the socket is writable: a non-blocking send found the kernel short of memory.
    fn wait_writable(&self) -> io::Result<()> {
        let timeout = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        match poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], Some(&timeout))? {
            0 => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    /// Reads what is there; with `wait`, blocks until something is. A short read drained the
    /// socket. 0: the node closed it.
    pub fn read_records(&self, into: &mut [u8], wait: bool) -> io::Result<usize> {
        let flags = if wait {
            RecvFlags::empty()
        } else {
            RecvFlags::DONTWAIT
        };
        Ok(recv(&*self.0, into, flags)?.1)
    }
}

impl AsFd for SockmapSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A channel end's part of a socket: records of the next flush, and received descriptors.
#[derive(Debug)]
pub(crate) struct SockmapEnd {
    socket: SockmapSocket,
    channel: u32,
    unsent_records: Vec<u8>,
    pub(crate) received: VecDeque<Descriptor>,
    /// State of the channel before the last read of the socket.
    pub(crate) state_before_read: ChannelState,
}

impl SockmapEnd {
    pub(crate) fn new(wire: SockmapSocket, channel: u32) -> Self {
        Self {
            socket: wire,
            channel,
            unsent_records: Vec::new(),
            received: VecDeque::new(),
            state_before_read: ChannelState::Open,
        }
    }

    /// Queues a descriptor for the next [`SockmapEnd::send_queued`].
    pub(crate) fn queue_descriptor(&mut self, descriptor: Descriptor) {
        let record = SockmapRecord {
            descriptor,
            channel: self.channel,
            sender: 0,
        };
        self.unsent_records.extend_from_slice(&record.to_bytes());
    }

    /// Returns true if nothing is queued.
    pub(crate) fn is_empty(&self) -> bool {
        self.unsent_records.is_empty()
    }

    /// Sends all queued records.
    pub(crate) fn send_queued(&mut self) -> io::Result<()> {
        let sent = self.socket.send_records(&self.unsent_records);
        // Also after a failure: the channel is broken then, and a half-sent record must not be
        // repeated.
        self.unsent_records.clear();
        sent
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::SlotId;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_survives_encoding_and_decoding(bytes: [u8; RECORD_BYTES]) {
            let record = SockmapRecord::from_bytes(&bytes);
            prop_assert_eq!(&record.to_bytes()[..24], &bytes[..24]);
            prop_assert_eq!(SockmapRecord::from_bytes(&record.to_bytes()), record);
        }
    }

    #[test]
    fn a_record_has_the_layout_of_the_contract() {
        let descriptor = Descriptor {
            slot: SlotId(0x1000_0002),
            generation: 3,
            offset: 8,
            length: 64,
        };
        let bytes = SockmapRecord {
            descriptor,
            channel: 12,
            sender: 7,
        }
        .to_bytes();
        let words = [0x1000_0002u32, 3, 8, 64, 12, 7, 0, 0];
        assert_eq!(bytes.to_vec(), words.map(u32::to_le_bytes).concat());
        assert!(SockmapRecord::from_bytes(&[0; RECORD_BYTES]).is_wakeup());
        assert!(!SockmapRecord::from_bytes(&bytes).is_wakeup());
    }
}
