//! Connections to destinations: opened, kept warm, and given to whom [`crate::state`] says.

//!
//! [`Keeper`] is the rim of the state machine: it dials, watches what is open for nobody, hands over, and tells the stock what happened. Everybody who
//! wants a connection has a [`Backends`].

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

use crate::destination::Destination;

pub use driver::Keeper;
pub use liveness::is_quiet;
use resolver::Home;

/// A connection that counts towards its destination's ceiling until this is dropped.
#[derive(Debug)]
pub struct Lease {
    /// New: nobody has used it.
    pub stream: TcpStream,
    /// Tells the stock that it is gone; see [`Gone`].
    pub gone: Gone,
}

/// Frees a connection's place when it is dropped.
pub struct Gone {
    then: Option<Box<dyn FnOnce()>>,
    home: Option<Home>,
    follower: Option<Follower>,
}

/// Wants to know what a connection shows of its path, and, by nothing, that it has ended.
type Follower = Box<dyn FnMut(Option<&TcpFlowInfo>)>;

impl Gone {
    /// Calls `then` when it is dropped.
    pub fn then(then: impl FnOnce() + 'static) -> Self {
        Self { then: Some(Box::new(then)), home: None, follower: None }
    }

    fn at_home(mut self, home: Option<Home>) -> Self {
        self.home = home;
        self
    }

    /// Whether the name of its destination still means the server that it goes to. It may have moved to another one, although the old one is still there.
    pub fn is_at_home(&self) -> bool {
        self.home.as_ref().is_none_or(Home::is_there)
    }

    fn follow(mut self, follower: impl FnMut(Option<&TcpFlowInfo>) + 'static) -> Self {
        self.follower = Some(Box::new(follower));
        self
    }

    /// The connection has shown this of its path.
    pub fn saw(&mut self, flow: &TcpFlowInfo) {
        if let Some(follower) = &mut self.follower {
            follower(Some(flow));
        }
    }

    /// Looks at what the connection shows, if anybody wants to know. To be done when it was used, before it is closed.
    pub fn look(&mut self, stream: impl AsFd) {
        if let Some(follower) = &mut self.follower
            && let Ok(flow) = tcp_flow_info(stream)
        {
            follower(Some(&flow));
        }
    }
}

impl std::fmt::Debug for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gone")
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        if let Some(mut follower) = self.follower.take() {
            follower(None);
        }
        if let Some(then) = self.then.take() {
            then();
        }
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum NoConnection {
    /// All that the ceiling allows are in use, and none became free in time.
    #[error("{open} connections to {to} are open, as many as its `max` allows, and none became free within {waited:?}")]
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
pub enum Need {
    /// Nobody: there is room, or all are served.
    Nobody,
    /// The next in turn is a client of the same key.
    Own,
    /// The next in turn is a client of another key: a connection closed now serves it, one kept does not.
    Others,
}

/// What opens connections: the keeper, or a test's.
pub trait Backends {
    /// Who is next in turn for a place at `to`. Whoever holds an idle connection there asks before keeping it.
    fn need(&self, to: &Destination) -> Need {
        let _ = to;
        Need::Nobody
    }

    /// A connection that nobody has used, warm if there is one, until `deadline` at the latest.
    fn connect<'a>(
        &'a self,
        to: &'a Destination,
        deadline: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<Lease, NoConnection>> + 'a>>;
}
