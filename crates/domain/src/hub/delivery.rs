//! How descriptors go in a domain, and who carries them when it is the kernel.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nearpath_shm::Party;

use crate::protocol::Mode;

/// Chosen once for a domain.
#[derive(Debug, Clone, Default)]
pub enum Delivery {
    /// Rings in shared memory; parties sleep at their desks and are woken once a batch.
    #[default]
    Ring,
    /// The kernel carries descriptors from socket to socket, by a table of who may send where.
    Sockmap(Arc<dyn Exchange>),
    /// Rings, and parties that never sleep: for comparison.
    Poll,
}

impl Delivery {
    /// Its name in the protocol.
    pub fn mode(&self) -> Mode {
        match self {
            Self::Ring => Mode::Ring,
            Self::Sockmap(_) => Mode::Sockmap,
            Self::Poll => Mode::Poll,
        }
    }
}

/// The part of the kernel, which this crate knows nothing of: one for each domain.
pub trait Exchange: fmt::Debug + Send + Sync {
    /// Makes a party's socket: its end, and the node's. What the party writes is carried by the table; what it may not
    /// send is read at the node's end, and what is written there wakes the party.
    ///
    /// # Errors
    /// When no more can be made.
    fn seat(&self, party: Party) -> io::Result<[OwnedFd; 2]>;

    /// Nothing is carried to or from a party any more.
    fn unseat(&self, party: Party);

    /// What `from` sends on `channel` goes to `to`.
    ///
    /// # Errors
    /// When the table is full.
    fn permit(&self, from: Party, channel: u32, to: Party) -> io::Result<()>;

    /// What `from` sends on `channel` goes nowhere but to the node.
    fn revoke(&self, from: Party, channel: u32);
}
