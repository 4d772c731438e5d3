//! MQTT 3.1.1 and 5: a message is an invocation, and its response a message.
//!
//! Not a broker: clients cannot publish to each other, nothing is retained, and no session outlives
//! its connection. [`packet`] has the types and [`codec`] the bytes; [`session`] decides,
//! [`subscriptions`] routes results to clients, and [`client`] is the task of one connection
//! ([`packet_stream`]), which makes an [`invocation`] of each message.

mod client;
mod codec;
pub(super) mod fuzz;
mod invocation;
mod packet;
mod packet_stream;
mod session;
mod subscriptions;

use std::cell::{Cell, RefCell};
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nearpath_daemon::drain;
use nearpath_daemon::metrics::MetricsRegistry;
use nearpath_gateway::invoke::{Invoker, LocalService, LocalTask};
use nearpath_types::log_limiter::LogLimiter;
use tokio::net::{TcpListener, TcpStream};

use crate::limits::MqttLimits;
use crate::metrics::{MetricsCollector, MqttMetrics};
use crate::topic_routes::TopicRoutes;
use packet::DisconnectReason;
use subscriptions::Subscriptions;

/// Checks the name and password that a client at this address sent.
pub type PasswordCheck = Arc<dyn Fn(IpAddr, &str, &[u8]) -> PasswordVerdict + Send + Sync>;

/// The decision about a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PasswordVerdict {
    /// The name and the password are right, or none are needed.
    Right,
    /// The name or the password is wrong.
    Wrong,
    /// Too many wrong passwords came from the address; this one was not checked.
    LockedOut,
}

/// An MQTT listener.
pub struct MqttListener {
    /// The socket that clients connect to.
    pub socket: std::net::TcpListener,
    /// Limits for each client.
    pub limits: MqttLimits,
    /// Checks passwords; `None` accepts everybody.
    pub password_check: Option<PasswordCheck>,
}

impl MqttListener {
    fn try_clone(&self) -> io::Result<Self> {
        let (limits, password_check) = (self.limits.clone(), self.password_check.clone());
        Ok(Self {
            // The gateway asks each thread for its task through `&self`, so the socket cannot be
            // moved out.
            socket: self.socket.try_clone()?,
            limits,
            password_check,
        })
    }
}

/// The listener as a service of the gateway, on its first thread.
pub(crate) struct MqttService {
    listener: MqttListener,
    metrics: Arc<MqttMetrics>,
}

impl MqttService {
    /// Registers the protocol's counters.
    pub(crate) fn new(listener: MqttListener, registry: &MetricsRegistry) -> Self {
        let metrics = Arc::<MqttMetrics>::default();
        registry.with(|registry| {
            registry.register_collector(Box::new(MetricsCollector(metrics.clone())))
        });
        Self { listener, metrics }
    }
}

impl LocalService for MqttService {
    fn task_for_thread(&self, thread: usize, _threads: usize) -> io::Result<Option<LocalTask>> {
        if thread != 0 {
            return Ok(None); // one thread has all clients, so that subscriptions need no locks
        }
        let (listener, metrics) = (self.listener.try_clone()?, self.metrics.clone());
        Ok(Some(Box::new(move |invoker, drain| {
            Box::pin(serve(invoker, listener, metrics, drain))
        })))
    }
}

/// Connections above the limit that still get a reason; more are closed at once.
const MAX_REFUSED_CONNECTIONS: usize = 64;
/// Pause after a failed accept: without file descriptors, the next one fails as well.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// State that all clients share.
struct MqttServer {
    invoker: Invoker,
    limits: MqttLimits,
    password_check: Option<PasswordCheck>,
    metrics: Arc<MqttMetrics>,
    routes: RefCell<TopicRoutes>,
    subscriptions: Subscriptions,
    drain: drain::DrainWatch,
    /// Connections, also closed ones whose calls have not ended.
    open_connections: Cell<usize>,
}

/// Accepts clients until the drain begins.
async fn serve(
    invoker: Invoker,
    listener: MqttListener,
    metrics: Arc<MqttMetrics>,
    drain: drain::DrainWatch,
) -> io::Result<()> {
    listener.socket.set_nonblocking(true)?;
    let socket = TcpListener::from_std(listener.socket)?;
    let server = Rc::new(MqttServer {
        routes: TopicRoutes::new(invoker.functions()).into(),
        subscriptions: Subscriptions::new(listener.limits.max_queued_messages, metrics.clone()),
        limits: listener.limits,
        password_check: listener.password_check,
        open_connections: Cell::new(0),
        drain: drain.clone(),
        invoker,
        metrics,
    });
    let mut log_lines = LogLimiter::default();
    loop {
        let accepted = tokio::select! {
            () = drain.signaled() => return Ok(()),
            // Both futures are cancel safe: no accepted connection is lost.
            accepted = socket.accept() => accepted,
        };
        match accepted {
            Ok((stream, addr)) => accept_client(&server, stream, addr.ip()),
            Err(error) => {
                if let Some(suppressed) = log_lines.take_due(error.kind(), Instant::now()) {
                    tracing::warn!(%error, suppressed, "mqtt: accept failed, pausing");
                }
                tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
            }
        }
    }
}

fn accept_client(server: &Rc<MqttServer>, stream: TcpStream, addr: IpAddr) {
    let _ = stream.set_nodelay(true); // slower without it, but not wrong
    // A connection above the limit still costs a task and a buffer, so these are bounded as well.
    if server.open_connections.get() >= server.limits.max_clients + MAX_REFUSED_CONNECTIONS {
        return server
            .metrics
            .count_disconnect(DisconnectReason::Busy.name());
    }
    let slot = ConnectionSlot::acquire(server);
    // Compared after the slot is taken: the count includes this connection.
    let has_room = server.open_connections.get() <= server.limits.max_clients;
    server
        .invoker
        .spawn(client::serve(server.clone(), stream, addr, has_room, slot));
}

/// Counts a connection for as long as it lives.
struct ConnectionSlot(Rc<MqttServer>);

impl ConnectionSlot {
    fn acquire(server: &Rc<MqttServer>) -> Self {
        server
            .open_connections
            .set(server.open_connections.get() + 1);
        Self(server.clone())
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0
            .open_connections
            .set(self.0.open_connections.get() - 1);
    }
}
