//! Connections to virtual addresses without a ready instance here.
//!
//! The caller's socket keeps the virtual address, and the kernel brings the connection to the node's
//! listener in the hub (`bpf/vip.c`). The proxy wakes the function, waits for an instance, and forwards
//! the bytes. Later connections go to the instance without it. A function that runs on other nodes only
//! is reached over one of these.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::{FunctionId, FunctionRoute, NodeStreamRequest};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::address_index::{AddressRefusal, ipv4};
use super::connection_shares::{ConnectionShares, ShareLimits};
use super::indexed_snapshots::IndexedSnapshots;
use super::instance_connector::{ConnectError, InstanceConnector};
use super::relay::{relay, reset};
use super::remote::{RemoteStream, StreamCounts, StreamDirection, StreamFailure, StreamHook};

/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Connections of calling functions. Each holds two sockets and two buffers of 8 KiB.
const LIMITS: ShareLimits = ShareLimits {
    max_each: 256,
    max_total: 4_096,
};

/// Proxy for the connections of all instances. Clones are the same proxy.
#[derive(Clone)]
pub(crate) struct WakeProxy(Arc<ProxyContext>);

struct ProxyContext {
    snapshots: IndexedSnapshots,
    connector: InstanceConnector,
    streams: StreamHook,
    counts: StreamCounts,
    shares: ConnectionShares<FunctionId>,
    log_lines: Mutex<LogLimiter<FunctionId>>,
}

/// Reason why a connection is reset.
#[derive(Debug, thiserror::Error)]
enum ProxyError {
    #[error(transparent)]
    NotAdmitted(#[from] AddressRefusal),
    #[error(
        "the function has {each} connections that wait or are forwarded, or all functions have {total}",
        each = LIMITS.max_each,
        total = LIMITS.max_total
    )]
    TooMany,
    #[error(transparent)]
    NotConnected(#[from] ConnectError),
    #[error("it runs on other nodes only: {0}")]
    OtherNodes(StreamFailure),
}

/// A connection of an instance to a function's virtual address.
struct ProxiedConnection {
    socket: TcpStream,
    peer: SocketAddr,
    /// Function of the instance.
    caller: FunctionId,
    port: u16,
}

impl WakeProxy {
    pub(crate) fn new(
        snapshots: IndexedSnapshots,
        connector: InstanceConnector,
        streams: StreamHook,
        counts: StreamCounts,
    ) -> Self {
        Self(Arc::new(ProxyContext {
            snapshots,
            connector,
            streams,
            counts,
            shares: ConnectionShares::new(LIMITS),
            log_lines: Mutex::default(),
        }))
    }

    /// Serves connections as long as the runtime lives.
    ///
    /// # Errors
    /// Fails when the listener cannot be registered with the runtime.
    pub(crate) async fn serve(self, listener: TcpListener) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            match listener.accept().await {
                Ok((connection, peer)) => self.spawn_connection(connection, peer),
                Err(error) => {
                    tracing::debug!(%error, "accept of a connection to a virtual address failed");
                    tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                }
            }
        }
    }

    fn spawn_connection(&self, connection: TcpStream, peer: SocketAddr) {
        let index = self.0.snapshots.current();
        let caller = ipv4(peer.ip()).and_then(|eip| index.function_of_instance(eip));
        let Some(caller) = caller.cloned() else {
            return reset(&connection);
        };
        let Some(share) = self.0.shares.take(&caller) else {
            self.0.log_refusal(&caller, peer, &ProxyError::TooMany);
            return reset(&connection);
        };
        let proxy = self.clone();
        tokio::spawn(async move {
            proxy.0.serve_connection(connection, peer, caller).await;
            drop(share);
        });
    }
}

impl ProxyContext {
    async fn serve_connection(&self, socket: TcpStream, peer: SocketAddr, caller: FunctionId) {
        let Ok(SocketAddr::V4(original)) = socket.local_addr() else {
            return reset(&socket);
        };
        let index = self.snapshots.current();
        let callee = match index.admit_caller(&caller, original) {
            Ok(callee) => callee,
            Err(refusal) => {
                self.log_refusal(&caller, peer, &refusal.into());
                return reset(&socket);
            }
        };
        let mut connection = ProxiedConnection {
            socket,
            peer,
            caller,
            port: original.port(),
        };
        if let Err(error) = self.forward(&mut connection, callee).await {
            self.log_refusal(&callee.id, peer, &error);
            reset(&connection.socket);
        }
    }

    /// Connects to the callee, and forwards until the end.
    async fn forward(
        &self,
        connection: &mut ProxiedConnection,
        callee: &FunctionRoute,
    ) -> Result<(), ProxyError> {
        if callee.runs_here {
            match self.forward_here(connection, &callee.id).await {
                // It was moved to other nodes while the connection waited.
                Err(ProxyError::NotConnected(ConnectError::NotHere)) => {}
                forwarded => return forwarded,
            }
        }
        self.forward_to_node(connection, callee).await
    }

    async fn forward_here(
        &self,
        connection: &mut ProxiedConnection,
        callee: &FunctionId,
    ) -> Result<(), ProxyError> {
        // The caller's port draws one of several instances.
        let (port, draw) = (connection.port, usize::from(connection.peer.port()));
        let mut instance = self.connector.connect(callee, port, draw).await?;
        if relay(&mut connection.socket, &mut instance).await.is_err() {
            reset(&connection.socket);
            reset(&instance);
        }
        Ok(())
    }

    /// The end of the edge cuts the caller's socket, which breaks the stream, too.
    async fn forward_to_node(
        &self,
        connection: &mut ProxiedConnection,
        callee: &FunctionRoute,
    ) -> Result<(), ProxyError> {
        let request = NodeStreamRequest {
            caller: connection.caller.clone(),
            callee: callee.id.clone(),
            port: connection.port,
        };
        // No wait of its own: the hook knows how long the called node may take.
        let edge = (request.caller.clone(), request.callee.clone());
        let opening = self.streams.open_stream(request, callee.policy.clone());
        let RemoteStream {
            mut stream, lost, ..
        } = opening.await.map_err(|error| {
            self.counts.note_failure(edge.clone(), StreamDirection::Out);
            ProxyError::OtherNodes(error)
        })?;
        let _open = self.counts.open(edge, StreamDirection::Out);
        let is_complete = tokio::select! {
            relayed = relay(&mut connection.socket, &mut stream) => relayed.is_ok(),
            () = lost => false,
        };
        if !is_complete {
            reset(&connection.socket); // the stream ends with an error when it is dropped
        }
        Ok(())
    }

    fn log_refusal(&self, function: &FunctionId, caller: SocketAddr, error: &ProxyError) {
        let now = Instant::now().into_std();
        let mut lines = self
            .log_lines
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(suppressed) = lines.take_due(function.clone(), now) {
            tracing::warn!(%function, %caller, suppressed, "connection to a virtual address was reset: {error}");
        }
    }
}
