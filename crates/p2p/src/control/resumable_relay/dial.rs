//! Dials the connections of a resumable relay.

use std::io;
use std::pin::Pin;

use crate::migrate::RelayConnection;

/// Dials connections to the relay.
pub(in crate::control) trait RelayDial: Send + Unpin {
    /// Connection to the relay.
    type Relay: RelayConnection;

    /// Dials once.
    fn dial(&mut self) -> RelayDialFuture<Self::Relay>;
}

/// Result of [`RelayDial`].
pub(in crate::control) type RelayDialFuture<R> =
    Pin<Box<dyn Future<Output = Result<R, RelayFailure>> + Send>>;

/// Failure of a dial or connection.
#[derive(Debug)]
pub(in crate::control) struct RelayFailure {
    pub(in crate::control) error: io::Error,
    /// True if another connection would fail the same way.
    pub(in crate::control) is_final: bool,
}

impl RelayFailure {
    /// Wraps the error of an open connection.
    pub(super) fn from_error(error: io::Error) -> Self {
        let is_final = crate::control::relay_stream::is_final(&error);
        Self { error, is_final }
    }
}
