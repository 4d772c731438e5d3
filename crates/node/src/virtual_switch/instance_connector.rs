//! Connections from the node to ready instances here, at any port.

use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use nearpath_kernel::hub_netns::HubNetns;
use nearpath_types::{FunctionId, Reason, RoutingSnapshot};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::address_index::ready_addresses;
use crate::config::WakeHook;

/// Connects to instances of this node, and wakes their functions. Clones are the same connector.
#[derive(Clone)]
pub(crate) struct InstanceConnector {
    hub: Arc<HubNetns>,
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    wake: WakeHook,
}

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("it does not run on this node")]
    NotHere,
    #[error("no instance became ready within {0:?} (nearpath.io/cold-timeout)")]
    ColdTimeout(Duration),
    #[error("it was removed")]
    Removed,
    #[error("its instance cannot be reached: {0}")]
    Unreachable(io::Error),
}

impl ConnectError {
    /// Returns the reason for callers on other nodes.
    pub(super) fn reason(&self) -> Reason {
        match self {
            Self::NotHere | Self::Removed => Reason::NotHere,
            Self::ColdTimeout(_) => Reason::ColdTimeout,
            Self::Unreachable(_) => Reason::ConnectFailed,
        }
    }
}

impl InstanceConnector {
    /// Creates a connector from the hub to the instances of a node.
    pub(crate) fn new(
        hub: Arc<HubNetns>,
        snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
        wake: WakeHook,
    ) -> Self {
        Self {
            hub,
            snapshots,
            wake,
        }
    }

    /// Returns the functions of this node as they change.
    pub(super) fn snapshots(&self) -> &watch::Receiver<Arc<RoutingSnapshot>> {
        &self.snapshots
    }

    /// Waits until a function has a ready instance here, and connects to one of its ports. `draw`, any
    /// number, selects one of several instances.
    pub(super) async fn connect(
        &self,
        callee: &FunctionId,
        port: u16,
        draw: usize,
    ) -> Result<TcpStream, ConnectError> {
        let mut snapshots = self.snapshots.clone();
        let limit = {
            let snapshot = snapshots.borrow();
            let route = snapshot.functions.get(callee);
            route.ok_or(ConnectError::Removed)?.policy.cold_timeout
        };
        let deadline = Instant::now() + limit;
        loop {
            // Before the look: a change in between is seen.
            snapshots.mark_unchanged();
            if let Some(eip) = self.ready_instance(callee, draw)? {
                let dial = self.dial(eip, port);
                let late = |_| Err(ConnectError::Unreachable(io::ErrorKind::TimedOut.into()));
                return timeout_at(deadline, dial).await.unwrap_or_else(late);
            }
            match timeout_at(deadline, snapshots.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(ConnectError::ColdTimeout(limit)),
            }
        }
    }

    /// Returns a ready instance, or wakes the function.
    fn ready_instance(
        &self,
        callee: &FunctionId,
        draw: usize,
    ) -> Result<Option<Ipv4Addr>, ConnectError> {
        let snapshot = self.snapshots.borrow().clone();
        let route = snapshot.functions.get(callee);
        let route = route.ok_or(ConnectError::Removed)?;
        if !route.runs_here {
            return Err(ConnectError::NotHere);
        }
        let addresses = ready_addresses(route);
        if route.replicas == 0 {
            self.wake.wake_function(callee);
        }
        let drawn = draw.checked_rem(addresses.len());
        Ok(drawn.map(|index| addresses[index]))
    }

    async fn dial(&self, eip: Ipv4Addr, port: u16) -> Result<TcpStream, ConnectError> {
        let socket = self.hub.open_tcp_socket();
        let socket = socket.map_err(ConnectError::Unreachable)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let connected = socket.connect((eip, port).into()).await;
        let connected = connected.map_err(ConnectError::Unreachable)?;
        let _ = connected.set_nodelay(true); // only speed depends on it
        Ok(connected)
    }
}
