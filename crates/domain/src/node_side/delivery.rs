//! Delivery of descriptors in a domain, and the kernel interface of sockmap delivery.

use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use nearpath_shm::EndpointId;

use crate::protocol::DeliveryMode;

/// Delivery of descriptors, chosen once per domain.
#[derive(Debug, Clone, Default)]
pub enum DescriptorDelivery {
    /// Rings in shared memory; endpoints sleep in their wakeup cells and are woken once per batch.
    #[default]
    Ring,
    /// The kernel carries descriptors from socket to socket, by a table of permitted channels.
    Sockmap(Arc<dyn SockmapExchange>),
    /// Rings, and endpoints that never sleep; for comparison.
    Poll,
}

impl DescriptorDelivery {
    /// Returns the mode of the protocol.
    pub fn mode(&self) -> DeliveryMode {
        match self {
            Self::Ring => DeliveryMode::Ring,
            Self::Sockmap(_) => DeliveryMode::Sockmap,
            Self::Poll => DeliveryMode::Poll,
        }
    }
}

/// Kernel side of sockmap delivery, implemented outside of this crate; one per domain.
pub trait SockmapExchange: fmt::Debug + Send + Sync {
    /// Creates the socket of an endpoint: the endpoint's end, and the node's. The table carries the
    /// endpoint's permitted records; refused ones are read at the node's end. A write there wakes
    /// the endpoint.
    ///
    /// # Errors
    /// When no more sockets can be created.
    fn create_sockets(&self, endpoint: EndpointId) -> io::Result<[OwnedFd; 2]>;

    /// Removes an endpoint: nothing is carried to or from it any more.
    fn remove_endpoint(&self, endpoint: EndpointId);

    /// Permits channel `channel` from `from` to `to`.
    ///
    /// # Errors
    /// When the table is full.
    fn permit_channel(&self, from: EndpointId, channel: u32, to: EndpointId) -> io::Result<()>;

    /// Revokes the channel of `from`: its records reach only the node.
    fn revoke_channel(&self, from: EndpointId, channel: u32);
}
