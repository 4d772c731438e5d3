//! Connections to destinations: opened, kept warm, and given to whom [`crate::phase`] says.

//!
//! [`ConnectionPool`] is the rim of the state machine: it dials, watches what is open for nobody, hands over, and tells the stock what happened. Everybody who
//! wants a connection has a [`ConnectionSource`].

mod actions;
mod declared_keys;
mod dial;
mod driver;
mod initial_cwnd;
mod liveness;
mod maintenance;
mod name_binding;
mod pending_connect;
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

/// A connection that counts towards its destination's ceiling until this is dropped.
#[derive(Debug)]
pub struct ConnectionLease {
    /// New: nobody has used it.
    pub stream: TcpStream,
    /// Tells the stock that it is gone; see [`Gone`].
    pub guard: LeaseGuard,
}

/// Frees a connection's place when it is dropped.
pub struct LeaseGuard {
    on_drop: Option<Box<dyn FnOnce()>>,
    binding: Option<NameBinding>,
    observer: Option<FlowObserver>,
}

/// Wants to know what a connection shows of its path, and, by nothing, that it has ended.
type FlowObserver = Box<dyn FnMut(Option<&TcpFlowInfo>)>;

impl LeaseGuard {
    /// Calls `then` when it is dropped.
    pub fn on_drop(then: impl FnOnce() + 'static) -> Self {
        Self {
            on_drop: Some(Box::new(then)),
            binding: None,
            observer: None,
        }
    }

    fn with_binding(mut self, home: Option<NameBinding>) -> Self {
        self.binding = home;
        self
    }

    /// Whether the name of its destination still means the server that it goes to. It may have moved to another one, although the old one is still there.
    pub fn is_binding_current(&self) -> bool {
        self.binding.as_ref().is_none_or(NameBinding::is_current)
    }

    fn with_observer(mut self, follower: impl FnMut(Option<&TcpFlowInfo>) + 'static) -> Self {
        self.observer = Some(Box::new(follower));
        self
    }

    /// The connection has shown this of its path.
    pub fn observe_flow(&mut self, flow: &TcpFlowInfo) {
        if let Some(follower) = &mut self.observer {
            follower(Some(flow));
        }
    }

    /// Looks at what the connection shows, if anybody wants to know. To be done when it was used, before it is closed.
    pub fn sample_flow(&mut self, stream: impl AsFd) {
        if let Some(follower) = &mut self.observer
            && let Ok(flow) = tcp_flow_info(stream)
        {
            follower(Some(&flow));
        }
    }
}

impl std::fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gone")
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if let Some(mut follower) = self.observer.take() {
            follower(None);
        }
        if let Some(then) = self.on_drop.take() {
            then();
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum NoConnection {
    /// All that the ceiling allows are in use, and none became free in time.
    #[error(
        "{open} connections to {to} are open, as many as its `max` allows, and none became free within {waited:?}"
    )]
    Exhausted {
        /// `HOST:PORT`.
        to: String,
        /// The ceiling.
        open: u32,
        /// How long it was waited for.
        waited: std::time::Duration,
    },
    /// The destination did not take the connection.
    #[error("{to}: {error}")]
    Refused {
        /// `HOST:PORT`.
        to: String,
        /// What the kernel, or the resolver, said.
        error: std::io::Error,
    },
}

/// Who waits for a place below a destination's ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextWaiter {
    /// Nobody: there is room, or all are served.
    None,
    /// The next in turn is a client of the same key.
    SameKey,
    /// The next in turn is a client of another key: a connection closed now serves it, one kept does not.
    OtherKey,
}

/// What opens connections: the keeper, or a test's.
pub trait ConnectionSource {
    /// Who is next in turn for a place at `to`. Whoever holds an idle connection there asks before keeping it.
    fn next_waiter(&self, to: &EgressDestination) -> NextWaiter {
        let _ = to;
        NextWaiter::None
    }

    /// A connection that nobody has used, warm if there is one, until `deadline` at the latest.
    fn connect<'a>(
        &'a self,
        to: &'a EgressDestination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<ConnectionLease, NoConnection>> + 'a>>;
}
