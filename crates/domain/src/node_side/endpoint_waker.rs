//! Wakes endpoints from the node.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use nearpath_shm::WakeupSignal;
use nearpath_shm::sockmap::RECORD_BYTES;
use rustix::net::{SendFlags, send};

/// Wakes an endpoint from the node.
#[derive(Debug, Clone)]
pub(super) struct EndpointWaker {
    pub(super) signal: WakeupSignal,
    pub(super) node_socket: Option<Arc<OwnedFd>>,
}

impl EndpointWaker {
    /// Wakes the endpoint.
    pub(super) fn wake(&self) {
        self.signal.wake();
        self.send_wakeup_record();
    }

    /// Announces data on the endpoint's dispatch socket.
    pub(super) fn notify_control(&self) {
        self.signal.notify_control();
        self.send_wakeup_record();
    }

    fn send_wakeup_record(&self) {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        // Fails when the endpoint is gone, or has so many unread records that it wakes anyway.
        self.node_socket
            .iter()
            .for_each(|wire| _ = send(wire, &[0; RECORD_BYTES], flags));
    }
}
