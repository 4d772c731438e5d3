//! The node's state of an endpoint: its wakeup cell, and with sockmap the node's end of its socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::sockmap::RECORD_BYTES;
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::{EndpointId, WakeupCell, wakeup_cell};
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::connection::{ConnectionKey, SocketEvent, watch_readiness};
use super::endpoint_waker::EndpointWaker;
use super::{DescriptorDelivery, DomainSettings};
use crate::protocol::{DeliveryMode, DomainIsolation, HelloMessage, WakeupMode};

/// State of an endpoint; see the module documentation.
#[derive(Debug)]
pub(super) struct EndpointState {
    pub(super) key: ConnectionKey,
    cell: WakeupCell,
    node_socket: Option<NodeSocket>,
}

/// The node's end of an endpoint's sockmap socket; it closes with the endpoint.
#[derive(Debug)]
struct NodeSocket {
    socket: Arc<OwnedFd>,
    audit_task: AbortHandle,
}

impl Drop for NodeSocket {
    fn drop(&mut self) {
        self.audit_task.abort();
    }
}

/// Returns the reason why the endpoint cannot join, for the endpoint.
pub(super) fn unsupported_feature(
    settings: &DomainSettings,
    hello: &HelloMessage,
) -> Option<String> {
    let carried = matches!(settings.delivery, DescriptorDelivery::Sockmap(_))
        && !hello.delivery.contains(&DeliveryMode::Sockmap);
    let strict = settings.isolation == DomainIsolation::Strict
        && !hello.isolation.contains(&DomainIsolation::Strict);
    let what = match (carried, strict) {
        (true, _) => "delivery: sockmap",
        (_, true) => "isolation: strict",
        _ => return None,
    };
    Some(format!(
        "this chain has nearpath.io/{what}, which this program's library cannot do"
    ))
}

impl EndpointState {
    /// Creates a wakeup cell, and a socket if the mode needs one. Also returns the descriptors for
    /// the endpoint, in order.
    pub(super) fn create(
        delivery: &DescriptorDelivery,
        (key, endpoint): (ConnectionKey, EndpointId),
        hello: &HelloMessage,
        events: &mpsc::Sender<SocketEvent>,
    ) -> io::Result<(Self, Vec<OwnedFd>)> {
        // The node never waits in a cell, so its policy does not matter.
        let never = || SpinPolicy::new(Duration::ZERO);
        if let DescriptorDelivery::Sockmap(exchange) = delivery {
            let [theirs, ours] = exchange.create_sockets(endpoint)?;
            // Its threads wake each other on channel 0
            exchange.permit_channel(endpoint, 0, endpoint)?;
            // The socket wakes (ADR 0011): peers need the cell only for `asleep`, core and control
            // sequence.
            let cell = WakeupCell::create(wakeup_cell::WakeupKind::BusyPoll, never())?;
            let wire = NodeSocket::new(key, ours, events.clone());
            let descriptors = vec![cell.as_fd().try_clone_to_owned()?, theirs];
            return Ok((
                Self {
                    key,
                    cell,
                    node_socket: Some(wire),
                },
                descriptors,
            ));
        }
        // A library without polling sleeps in its cell; a mixed domain works, only slower.
        let polls = matches!(delivery, DescriptorDelivery::Poll)
            && hello.delivery.contains(&DeliveryMode::Poll);
        let cell = match hello.wakeup {
            _ if polls => WakeupCell::create(wakeup_cell::WakeupKind::BusyPoll, never()),
            WakeupMode::Futex => WakeupCell::create(wakeup_cell::WakeupKind::Futex, never()),
            WakeupMode::Eventfd => WakeupCell::create_nonblocking(never()),
            WakeupMode::None => WakeupCell::create(wakeup_cell::WakeupKind::BusyPoll, never()),
        }?;
        let state = Self {
            key,
            cell,
            node_socket: None,
        };
        let descriptors = state.peer_descriptors()?;
        Ok((state, descriptors))
    }

    /// Returns the descriptors of the cell for peers.
    pub(super) fn peer_descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        let event = self
            .cell
            .eventfd()
            .map(|event| event.try_clone_to_owned())
            .transpose()?;
        Ok([Some(self.cell.as_fd().try_clone_to_owned()?), event]
            .into_iter()
            .flatten()
            .collect())
    }

    pub(super) fn endpoint_waker(&self) -> EndpointWaker {
        EndpointWaker {
            signal: self.cell.wakeup_signal(),
            node_socket: self
                .node_socket
                .as_ref()
                .map(|wire| Arc::clone(&wire.socket)),
        }
    }
}

impl NodeSocket {
    fn new(key: ConnectionKey, socket: OwnedFd, events: mpsc::Sender<SocketEvent>) -> Self {
        let socket = Arc::new(socket);
        // A task of its own: the domain's task must not wait for one endpoint's records.
        let audit =
            tokio::spawn(audit_forbidden_sends(key, Arc::clone(&socket), events)).abort_handle();
        Self {
            socket,
            audit_task: audit,
        }
    }
}

/// Reads refused records of an endpoint until it is gone.
async fn audit_forbidden_sends(
    key: ConnectionKey,
    socket: Arc<OwnedFd>,
    events: mpsc::Sender<SocketEvent>,
) -> io::Result<()> {
    let ready = watch_readiness(socket.try_clone()?)?;
    let mut tried = vec![0; 64 * RECORD_BYTES];
    loop {
        let read = || Ok(recv(&socket, tried.as_mut_slice(), RecvFlags::DONTWAIT)?.1);
        let bytes = ready.async_io(Interest::READABLE, read).await?;
        if bytes == 0
            || events
                .send(SocketEvent::ForbiddenSend(key, tried[..bytes].to_vec()))
                .await
                .is_err()
        {
            return Ok(());
        }
    }
}
