//! The rendezvous and its relay: introduces the workers of a job to each other, passes on what they say about their session
//! and their work, tells them how they are seen from outside, and carries the bytes of those who have no direct way yet.
//!
//! [`desk`] decides, without a socket. `door` takes connections and looks at tickets, `hall` is the desk with its lines'
//! letter boxes, `line` and `relay` serve one connection each, `observers` answer questions. Nothing is stored: tickets
//! and passes prove themselves, and what a process forgets with its end is told to it anew (`contract/rendezvous.md`).

mod bucket;
pub mod desk;
mod door;
mod hall;
mod jobs;
mod ledger;
mod letters;
mod line;
mod meter;
mod observers;
mod relay;
mod settings;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nearpath_daemon::metrics::Registry;
use rustls::ServerConfig;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

pub use bucket::Rate;
pub use settings::{Limits, Place, Settings};

use crate::message::Observer;

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
    let judge = Arc::new(crate::observe::Judge::new(&key));
    let hall = Arc::new(hall::Hall::new(key.clone(), limits));
    ledger::register(&hall, registry);
    let observers = observers::start(&observers, &judge, &hall, &drain)?;
    let door = door::Door {
        key,
        tls: tls.map(|tls| acceptor(&tls)),
        relays: relay::Exchange::new(hall.clone()),
        arrivals: door::Arrivals::new(limits.arrivals),
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
