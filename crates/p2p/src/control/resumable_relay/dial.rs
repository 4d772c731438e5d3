//! Where a lasting relay's connections come from.

use std::io;
use std::pin::Pin;

use crate::migrate::RelayConnection;

/// Opens connections to the relay.
pub(in crate::control) trait RelayDial: Send + Unpin {
    /// What comes of it.
    type Relay: RelayConnection;

    /// Opens one more.
    fn dial(&mut self) -> RelayDialFuture<Self::Relay>;
}

/// See [`RelayDial`].
pub(in crate::control) type RelayDialFuture<R> =
    Pin<Box<dyn Future<Output = Result<R, RelayFailure>> + Send>>;

/// There is no connection, or no more.
#[derive(Debug)]
pub(in crate::control) struct RelayFailure {
    pub(in crate::control) error: io::Error,
    /// Another one would end the same way.
    pub(in crate::control) is_final: bool,
}

impl RelayFailure {
    /// Of a connection that was there.
    pub(super) fn from_error(error: io::Error) -> Self {
        let is_final = crate::control::relay_stream::is_final(&error);
        Self { error, is_final }
    }
}
