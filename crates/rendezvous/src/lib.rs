//! The rendezvous and its relay: introduces the workers of a job to each other, passes on what they say about their session
//! and their work, tells them how they are seen from outside, and carries the bytes of those who have no direct way yet.
//!
//! [`desk`] decides, without a socket. `door` takes connections and looks at tickets, `hall` is the desk with its lines'
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

use nearpath_daemon::metrics::Registry;
use rustls::ServerConfig;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub use rate_limits::Rate;
pub use settings::{Limits, Place, Settings};

use nearpath_p2p::message::Observer;

/// A rendezvous that runs.
#[derive(Debug, Clone)]
pub struct Rendezvous {
    /// Where lines and relays are taken.
    pub addr: SocketAddr,
    /// Where observers are, as workers are told.
    pub observers: Vec<Observer>,
}

/// Begins, on the runtime that runs this, and goes on until the drain.
///
/// # Errors
/// When a port cannot be had.
pub fn start(settings: Settings, registry: &Registry) -> io::Result<Rendezvous> {
    let Settings { key, listener, tls, observers, limits, drain } = settings;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let addr = listener.local_addr()?;
    let judge = Arc::new(nearpath_p2p::reflexive_address::Judge::new(&key));
    let hall = Arc::new(shared_state::Hall::new(key.clone(), limits));
    metrics::register(&hall, registry);
    let observers = observers::start(&observers, &judge, &hall, &drain)?;
    let door = accept::Door {
        key,
        tls: tls.map(|tls| acceptor(&tls)),
        relays: relay::Exchange::new(hall.clone()),
        arrivals: accept::Arrivals::new(limits.arrivals),
        unproven: Arc::new(Semaphore::new(limits.unproven)),
        observers: observers.clone(),
        judge,
        hall: hall.clone(),
        drain: drain.clone(),
    };
    tokio::spawn(Arc::new(door).accept(listener));
    tokio::spawn(async move {
        tokio::select! {
            () = hall.keep_time() => {}
            () = drain.signaled() => hall.close(),
        }
    });
    Ok(Rendezvous { addr, observers })
}

/// WebSocket begins with HTTP/1.1: whoever offers HTTP/2 as well is not given it.
fn acceptor(tls: &ServerConfig) -> TlsAcceptor {
    let mut config = tls.clone();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
