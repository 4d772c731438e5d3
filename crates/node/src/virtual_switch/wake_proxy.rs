//! Connections to virtual addresses without a ready instance here.
//!
//! The caller's socket keeps the virtual address, and the kernel brings the connection to the node's
//! listener in the hub (`bpf/vip.c`). The proxy wakes the function, waits for an instance, and forwards
//! the bytes. Later connections go to the instance without it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nearpath_kernel::hub_netns::HubNetns;
use nearpath_types::log_limiter::LogLimiter;
use nearpath_types::{FunctionId, FunctionRoute, InstanceState, RoutingSnapshot};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::connection_shares::{ConnectionShares, MAX_CONNECTIONS, MAX_PER_CALLER};
use crate::config::WakeHook;

/// Pause after an accept that failed for lack of descriptors or memory.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Time that a caller has for its last bytes after the instance has closed.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(60);

/// Proxy for the connections of all instances. Clones are the same proxy.
#[derive(Clone)]
pub(crate) struct WakeProxy(Arc<ProxyContext>);

struct ProxyContext {
    hub: Arc<HubNetns>,
    snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
    wake: WakeHook,
    shares: ConnectionShares,
    log_lines: Mutex<LogLimiter<FunctionId>>,
}

/// Reason why a connection is reset.
#[derive(Debug, thiserror::Error)]
enum ProxyError {
    #[error("the caller has no declared edge to it")]
    NotDeclared,
    #[error("it runs on other nodes only, which are reached over HTTP")]
    OtherNodes,
    #[error("no instance became ready within {0:?} (nearpath.io/cold-timeout)")]
    ColdTimeout(Duration),
    #[error("it was removed")]
    Removed,
    #[error("no function is deployed that has the address {0}")]
    NotDeployed(Ipv4Addr),
    #[error(
        "the function has {MAX_PER_CALLER} connections that wait or are forwarded, or all functions have {MAX_CONNECTIONS}"
    )]
    TooMany,
    #[error("its instance cannot be reached: {0}")]
    Unreachable(io::Error),
}

impl WakeProxy {
    pub(crate) fn new(
        hub: Arc<HubNetns>,
        snapshots: watch::Receiver<Arc<RoutingSnapshot>>,
        wake: WakeHook,
    ) -> Self {
        Self(Arc::new(ProxyContext {
            hub,
            snapshots,
            wake,
            shares: ConnectionShares::default(),
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
        let Some(caller) = self.0.caller(peer.ip()) else {
            return reset(&connection);
        };
        let Some(share) = self.0.shares.take(&caller) else {
            self.0.log_refusal(&caller, peer, &ProxyError::TooMany);
            return reset(&connection);
        };
        let proxy = self.clone();
        tokio::spawn(async move {
            proxy.0.serve_connection(connection, peer, &caller).await;
            drop(share);
        });
    }
}

impl ProxyContext {
    async fn serve_connection(
        &self,
        mut connection: TcpStream,
        peer: SocketAddr,
        caller: &FunctionId,
    ) {
        let Ok(SocketAddr::V4(original)) = connection.local_addr() else {
            return reset(&connection);
        };
        let Some(callee) = self.find_callee(*original.ip()) else {
            self.log_refusal(caller, peer, &ProxyError::NotDeployed(*original.ip()));
            return reset(&connection);
        };
        match self
            .connect_instance(&callee, caller, peer.port(), original)
            .await
        {
            Ok(mut instance) => forward(&mut connection, &mut instance).await,
            Err(error) => {
                self.log_refusal(&callee, peer, &error);
                reset(&connection);
            }
        }
    }

    /// Waits until the function has a ready instance here, and connects to it.
    async fn connect_instance(
        &self,
        callee: &FunctionId,
        caller: &FunctionId,
        draw: u16,
        original: SocketAddrV4,
    ) -> Result<TcpStream, ProxyError> {
        let mut snapshots = self.snapshots.clone();
        // Again: the edge may have been removed after the kernel's check, and a connection waits long.
        self.check_edge(callee, caller)?;
        let limit = {
            let snapshot = snapshots.borrow();
            let route = snapshot.functions.get(callee).ok_or(ProxyError::Removed)?;
            route.policy.cold_timeout
        };
        let deadline = Instant::now() + limit;
        loop {
            // Before the look: a change in between is seen.
            snapshots.mark_unchanged();
            if let Some(eip) = self.ready_instance(callee, draw)? {
                let dial = self.dial(eip, original.port());
                let late = |_| Err(ProxyError::Unreachable(io::ErrorKind::TimedOut.into()));
                return timeout_at(deadline, dial).await.unwrap_or_else(late);
            }
            match timeout_at(deadline, snapshots.changed()).await {
                Ok(Ok(())) => {}
                _ => return Err(ProxyError::ColdTimeout(limit)),
            }
        }
    }

    /// Returns a ready instance, or wakes the function. The caller's port draws one of several.
    fn ready_instance(
        &self,
        callee: &FunctionId,
        draw: u16,
    ) -> Result<Option<Ipv4Addr>, ProxyError> {
        let snapshot = self.snapshots.borrow().clone();
        let route = snapshot.functions.get(callee).ok_or(ProxyError::Removed)?;
        if !route.runs_here {
            return Err(ProxyError::OtherNodes);
        }
        let ready = route
            .instances
            .iter()
            .filter(|one| one.state == InstanceState::Ready);
        let addresses: Vec<_> = ready.filter_map(|one| ipv4(one.addr.ip())).collect();
        if route.replicas == 0 {
            self.wake.wake_function(callee);
        }
        let drawn = usize::from(draw).checked_rem(addresses.len());
        Ok(drawn.map(|index| addresses[index]))
    }

    fn check_edge(&self, callee: &FunctionId, caller: &FunctionId) -> Result<(), ProxyError> {
        let snapshot = self.snapshots.borrow().clone();
        let caller = snapshot.functions.get(caller);
        let is_declared = caller.is_some_and(|caller| caller.policy.calls.contains(callee));
        is_declared.then_some(()).ok_or(ProxyError::NotDeclared)
    }

    /// Returns the function of a calling instance.
    fn caller(&self, eip: IpAddr) -> Option<FunctionId> {
        let snapshot = self.snapshots.borrow().clone();
        let mut functions = snapshot.functions.values();
        let is_caller = |route: &&Arc<FunctionRoute>| {
            let mut instances = route.instances.iter();
            instances.any(|one| one.addr.ip() == eip)
        };
        functions.find(is_caller).map(|route| route.id.clone())
    }

    fn find_callee(&self, address: Ipv4Addr) -> Option<FunctionId> {
        let snapshot = self.snapshots.borrow().clone();
        let mut functions = snapshot.functions.values();
        let found = functions.find(|route| route.address.is_some_and(|own| own.v4 == address));
        found.map(|route| route.id.clone())
    }

    async fn dial(&self, eip: Ipv4Addr, port: u16) -> Result<TcpStream, ProxyError> {
        let socket = self.hub.open_tcp_socket();
        let socket = socket.map_err(ProxyError::Unreachable)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        let connected = socket.connect((eip, port).into()).await;
        let connected = connected.map_err(ProxyError::Unreachable)?;
        let _ = connected.set_nodelay(true); // only speed depends on it
        Ok(connected)
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

fn ipv4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    }
}

/// Forwards bytes until both ends have closed. If one breaks, the other is reset: it could take an orderly
/// end for the whole content.
async fn forward(caller: &mut TcpStream, instance: &mut TcpStream) {
    let copied = {
        let (mut from_caller, mut to_caller) = caller.split();
        let (mut from_instance, mut to_instance) = instance.split();
        let mut requests = pin!(copy_to_end(&mut from_caller, &mut to_instance));
        let mut answers = pin!(copy_to_end(&mut from_instance, &mut to_caller));
        tokio::select! {
            copied = &mut requests => match copied {
                Ok(()) => answers.await,
                broken => broken,
            },
            copied = &mut answers => match copied {
                // Callers may keep the sockets of ended instances, as connection pools do.
                Ok(()) => end_within(HALF_CLOSED_TIMEOUT, requests).await,
                broken => broken,
            },
        }
    };
    if copied.is_err() {
        reset(caller);
        reset(instance);
    }
}

/// Copies until the end, and passes it on.
async fn copy_to_end(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    tokio::io::copy(from, to).await?;
    to.shutdown().await
}

async fn end_within(
    limit: Duration,
    copying: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    timeout(limit, copying).await?
}

/// Makes the close of a connection a reset, which the caller cannot take for an orderly end.
fn reset(connection: &TcpStream) {
    let _ = sockopt::set_socket_linger(connection, Some(Duration::ZERO)); // else it is an orderly end
}
