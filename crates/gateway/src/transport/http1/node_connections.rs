//! Connections of one thread to other nodes over TLS, kept for plain requests (decision 106).
//!
//! A request takes an idle connection, or a QUIC stream, which needs no handshake. A connection is then
//! opened beside it, for later ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use nearpath_wire::mtls::{AlpnProtocol, TlsVersion};
use nearpath_wire::quic::CallerConfig;
use rustix::net::sockopt::{
    set_socket_keepalive, set_tcp_keepidle, set_tcp_keepintvl, set_tcp_nodelay,
    set_tcp_user_timeout,
};

use super::connection::ServerConnection;
use super::node_pool::{NodePool, OpenAttempt};
use super::pooled_connection::PooledConnection;
use crate::event_loop::{PolledSocket, Poller};
use crate::function::DialTarget;
use crate::transport::SocketOpener;

/// Time for a connection and its handshake.
const OPEN_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without an acknowledgement after which a connection has ended; about that of a node that is down.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval of the kernel's probes of a silent connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Connections of one thread to other nodes.
pub(crate) struct NodeConnections {
    /// Pools by [`DialTarget::serial`].
    pools: RefCell<HashMap<u64, Arc<NodePool>>>,
    opener: SocketOpener,
    /// Maximum connections to each node; 0: none.
    max_per_node: usize,
}

impl NodeConnections {
    /// Creates the set without connections. `opener` opens their sockets.
    pub(crate) fn new(opener: SocketOpener, max_per_node: usize) -> Self {
        Self {
            pools: RefCell::default(),
            opener,
            max_per_node,
        }
    }

    /// Takes an idle connection to a node. `None`: there is none that can carry a request now.
    pub(crate) fn take_idle(
        &self,
        target: &Arc<DialTarget>,
        now: Instant,
    ) -> Option<PooledConnection> {
        let pool = self.pools.borrow().get(&target.serial)?.clone();
        let (connection, counted) = pool.take_idle(now)?;
        Some(PooledConnection::to_node(connection, pool, counted))
    }

    /// Opens a connection for later requests, unless there are enough.
    pub(crate) fn open_later(
        &self,
        target: &Arc<DialTarget>,
        caller: Option<CallerConfig>,
        poller: &Poller,
    ) {
        let Some(caller) = caller.filter(|_| self.max_per_node > 0) else {
            return;
        };
        if let Some(attempt) = self.pool_of(target).begin_opening(Instant::now()) {
            let (open, poller, target) = (self.opener.clone(), poller.clone(), target.clone());
            tokio::task::spawn_local(open_connection(attempt, target, caller, open, poller));
        }
    }

    /// Closes connections that were idle for too long, and all to nodes that are gone.
    pub(crate) fn sweep_idle(&self) {
        let now = Instant::now();
        self.pools
            .borrow_mut()
            .retain(|_, pool| pool.sweep_idle(now));
    }

    /// Closes idle connections, because this node has other certificates.
    pub(crate) fn renew(&self) {
        self.pools.borrow().values().for_each(|pool| pool.renew());
    }

    fn pool_of(&self, target: &Arc<DialTarget>) -> Arc<NodePool> {
        let new = || NodePool::new(target, self.max_per_node).into();
        let mut pools = self.pools.borrow_mut();
        pools.entry(target.serial).or_insert_with(new).clone()
    }
}

async fn open_connection(
    attempt: OpenAttempt,
    target: Arc<DialTarget>,
    caller: CallerConfig,
    open: SocketOpener,
    poller: Poller,
) {
    let Some(name) = target.server_name() else {
        return;
    };
    let connecting = connect(target.addr, &open, &poller);
    let (version, protocol) = (TlsVersion::Tls13, AlpnProtocol::Http1);
    let connector = caller.mtls_connector();
    let dialed = connector
        .dial_over(
            connecting,
            (target.addr, name),
            (version, protocol),
            OPEN_TIMEOUT,
        )
        .await;
    match dialed {
        Ok((stream, peer)) => {
            let ends_at = Instant::now() + peer.remaining_validity(SystemTime::now());
            if let Err(error) = attempt.complete(ServerConnection::to_node(stream), ends_at) {
                tracing::debug!(%error, "a TLS connection to another node is not kept");
            }
        }
        // Requests take other paths, which report their own errors.
        Err(error) => tracing::debug!(%error, "no TLS connection to another node"),
    }
}

async fn connect(
    addr: SocketAddr,
    open: &SocketOpener,
    poller: &Poller,
) -> io::Result<PolledSocket> {
    let socket = open(addr.is_ipv6())?;
    set_tcp_nodelay(&socket, true)?; // heads and small bodies would wait for acknowledgements
    // Requests must not wait for a node that is unreachable until their own time limits.
    set_tcp_user_timeout(&socket, SILENCE_TIMEOUT.as_millis() as u32)?;
    set_tcp_keepidle(&socket, KEEPALIVE_INTERVAL)?;
    set_tcp_keepintvl(&socket, KEEPALIVE_INTERVAL)?;
    set_socket_keepalive(&socket, true)?;
    PolledSocket::connect(socket, addr, poller).await
}

#[cfg(test)]
mod tests;
