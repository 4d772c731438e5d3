//! Connections to destinations: opened, kept warm, and handed out as [`crate::state`] decides.
//!
//! [`ConnectionPool`] drives the state machine: it dials, watches unused connections, hands over,
//! and reports events. Every client of connections has a [`ConnectionSource`].

mod actions;
mod answer_policy;
mod declared_keys;
mod dial;
mod driver;
mod initial_cwnd;
mod liveness;
mod maintenance;
mod name_binding;
mod near_connect;
mod peer_name;
mod pending_connect;
mod ready_slot_table;
mod ready_slots;
pub mod resolver;
mod status;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::time::Instant;

use nearpath_kernel::sockets::{TcpFlowInfo, tcp_flow_info};
use tokio::net::TcpStream;

use crate::destination::EgressDestination;

pub use driver::ConnectionPool;
pub use liveness::is_quiet;
use resolver::NameBinding;

/// A connection that counts towards its destination's limit until this is dropped.
#[derive(Debug)]
pub struct ConnectionLease {
    /// The connection. Nothing has used it yet.
    pub stream: TcpStream,
    /// Frees the slot on drop; see [`LeaseGuard`].
    pub guard: LeaseGuard,
}

/// Frees a connection's slot on drop.
pub struct LeaseGuard {
    on_drop: Option<Box<dyn FnOnce()>>,
    binding: Option<NameBinding>,
    observer: Option<FlowObserver>,
}

/// Receives the flow of a connection, and `None` when it ends.
type FlowObserver = Box<dyn FnMut(Option<&TcpFlowInfo>)>;

impl LeaseGuard {
    /// Calls `release` on drop.
    pub fn on_drop(release: impl FnOnce() + 'static) -> Self {
        Self {
            on_drop: Some(Box::new(release)),
            binding: None,
            observer: None,
        }
    }

    fn with_binding(mut self, binding: Option<NameBinding>) -> Self {
        self.binding = binding;
        self
    }

    /// Returns true if the destination's name still resolves to this server. The name may have
    /// moved while the old server still runs.
    pub fn is_binding_current(&self) -> bool {
        self.binding.as_ref().is_none_or(NameBinding::is_current)
    }

    fn with_observer(mut self, observer: impl FnMut(Option<&TcpFlowInfo>) + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Reports a flow of the connection.
    pub fn observe_flow(&mut self, flow: &TcpFlowInfo) {
        if let Some(observer) = &mut self.observer {
            observer(Some(flow));
        }
    }

    /// Samples the flow of the connection, if an observer is set. Call it after use, before the
    /// connection is closed.
    pub fn sample_flow(&mut self, stream: impl AsFd) {
        // Without an observer the system call is not worth its time.
        if let Some(observer) = &mut self.observer
            && let Ok(flow) = tcp_flow_info(stream)
        {
            observer(Some(&flow));
        }
    }
}

impl std::fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LeaseGuard")
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        // The observer first, so that the path's share is free before the slot is.
        if let Some(mut observer) = self.observer.take() {
            observer(None);
        }
        if let Some(release) = self.on_drop.take() {
            release();
        }
    }
}

/// Reason why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum NoConnection {
    /// All connections that the limit allows are in use, and none became free in time.
    #[error(
        "limit of {to} reached: {open} connections open and none freed within {waited:?}, raise its `max` or `wait`"
    )]
    Exhausted {
        /// Destination as `HOST:PORT`.
        to: String,
        /// Open connections, equal to the limit.
        open: u32,
        /// Time that the client waited.
        waited: std::time::Duration,
    },
    /// The destination refused the connection.
    #[error("{to}: {error}")]
    Refused {
        /// Destination as `HOST:PORT`.
        to: String,
        /// Error of the kernel or the resolver.
        error: std::io::Error,
    },
}

/// Next waiter for a slot below a destination's limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextWaiter {
    /// No client waits, or slots that are being freed serve all of them.
    None,
    /// A client of the same key.
    SameKey,
    /// A client of another key: a closed connection serves it, a kept one does not.
    OtherKey,
}

/// A source of new connections: the pool, or a fake of a test.
pub trait ConnectionSource {
    /// Returns the next waiter for a slot at `to`. Holders of an idle connection ask before they
    /// keep it.
    fn next_waiter(&self, to: &EgressDestination) -> NextWaiter {
        // Sources without a limit never keep a client waiting.
        let _ = to;
        NextWaiter::None
    }

    /// Returns an unused connection, warm if possible, until `deadline` at the latest.
    fn connect<'a>(
        &'a self,
        to: &'a EgressDestination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<ConnectionLease, NoConnection>> + 'a>>;
}
