//! The rendezvous and its relay: introduces the workers of a job to each other, passes on what they say about their session
//! and their work, tells them how they are seen from outside, and carries the bytes of those who have no direct way yet.
//!
//! [`state`] decides, without a socket. `door` takes connections and looks at tickets, `hall` is the desk with its lines'
//! letter boxes, `line` and `relay` serve one connection each, `observers` answer questions. Nothing is stored: tickets
//! and passes prove themselves, and what a process forgets with its end is told to it anew (`contract/rendezvous.md`).

#![forbid(unsafe_code)]

mod accept;
mod clock;
mod control_connection;
mod job_rates;
mod metrics;
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

/// A rendezvous that runs.
#[derive(Debug, Clone)]
pub struct RunningRendezvous {
    /// Where lines and relays are taken.
    pub addr: SocketAddr,
    /// Where observers are, as workers are told.
    pub observers: Vec<ObserverAddress>,
}

/// Begins, on the runtime that runs this, and goes on until the drain.
///
/// # Errors
/// When a port cannot be had.
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
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let addr = listener.local_addr()?;
    let observer_policy = Arc::new(nearpath_p2p::reflexive_address::ObserverPolicy::new(&key));
    let shared = Arc::new(shared_state::SharedState::new(key.clone(), limits));
    metrics::register_metrics(&shared, registry);
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
    tokio::spawn(Arc::new(connection_acceptor).accept(listener));
    tokio::spawn(async move {
        tokio::select! {
            () = shared.run_timers() => {}
            () = drain.signaled() => shared.close_all(),
        }
    });
    Ok(RunningRendezvous { addr, observers })
}

/// WebSocket begins with HTTP/1.1: whoever offers HTTP/2 as well is not given it.
fn tls_acceptor(tls: &ServerConfig) -> TlsAcceptor {
    let mut config = tls.clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
