//! Rendezvous server and relay.
//!
//! The server introduces the workers of a job to each other and forwards messages about their
//! sessions and their work. It reports their mapped addresses, and relays bytes while no direct
//! connection exists.
//!
//! [`state`] decides, without a socket. `accept` takes connections and verifies tickets.
//! `shared_state` is the state with the outboxes of its connections. `control_connection` and
//! `relay` serve one connection each, `observers` answer binding requests. Nothing is stored:
//! tickets and relay tokens carry all rights, and workers repeat what a restarted process has
//! forgotten (`contract/rendezvous.md`, decision 36).

#![forbid(unsafe_code)]

mod accept;
mod clock;
mod control_connection;
mod job_rates;
mod metrics;
mod metrics_collector;
mod observers;
mod outbox;
mod rate_limits;
mod relay;
mod settings;
mod shared_state;
pub mod state;
mod traffic_meter;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nearpath_daemon::metrics::MetricsRegistry;
use rustls::ServerConfig;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub use rate_limits::RateLimit;
pub use settings::{ObserverBinding, RendezvousLimits, RendezvousSettings};

use nearpath_p2p::message::ObserverAddress;

/// Running rendezvous.
#[derive(Debug, Clone)]
pub struct RunningRendezvous {
    /// Address of control connections and relays.
    pub addr: SocketAddr,
    /// Addresses of the observers, as workers learn them.
    pub observers: Vec<ObserverAddress>,
}

/// Starts a rendezvous on the present runtime; it runs until the drain.
///
/// # Errors
/// Fails when a port is not available.
pub fn start_rendezvous(
    settings: RendezvousSettings,
    registry: &MetricsRegistry,
) -> io::Result<RunningRendezvous> {
    let RendezvousSettings {
        key,
        listener,
        tls,
        observers,
        limits,
        drain,
    } = settings;
    // Tokio requires it: a blocking socket would stall the runtime.
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let addr = listener.local_addr()?;
    let observer_policy = Arc::new(nearpath_p2p::reflexive_address::ObserverPolicy::new(&key));
    let shared = Arc::new(shared_state::SharedState::new(key.clone(), limits));
    metrics_collector::register_metrics(&shared, registry);
    let observers = observers::start_observers(&observers, &observer_policy, &shared, &drain)?;
    let connection_acceptor = accept::ConnectionAcceptor {
        key,
        tls: tls.map(|tls| tls_acceptor(&tls)),
        relay_exchange: relay::RelayExchange::new(shared.clone()),
        arrival_limits: accept::ArrivalLimits::new(limits.arrival_rate),
        handshake_slots: Arc::new(Semaphore::new(limits.max_handshakes)),
        observers: observers.clone(),
        observer_policy,
        shared: shared.clone(),
        drain: drain.clone(),
    };
    // Accepting ends with the drain, but the task of each connection lives on.
    tokio::spawn(Arc::new(connection_acceptor).accept(listener));
    tokio::spawn(async move {
        tokio::select! {
            () = shared.run_timers() => {}
            () = drain.signaled() => shared.close_all(),
        }
    });
    Ok(RunningRendezvous { addr, observers })
}

/// Creates the TLS acceptor. WebSocket starts with HTTP/1.1, so `h2` is never negotiated.
fn tls_acceptor(tls: &ServerConfig) -> TlsAcceptor {
    let mut config = tls.clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
