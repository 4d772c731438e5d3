//! Where a lasting relay's connections come from.

use std::io;
use std::pin::Pin;

use crate::way::Relay;

/// Opens connections to the relay.
pub(in crate::client) trait Dial: Send + Unpin {
    /// What comes of it.
    type Relay: Relay;

    /// Opens one more.
    fn dial(&mut self) -> Dialling<Self::Relay>;
}

/// See [`Dial`].
pub(in crate::client) type Dialling<R> = Pin<Box<dyn Future<Output = Result<R, Cut>> + Send>>;

/// There is no connection, or no more.
#[derive(Debug)]
pub(in crate::client) struct Cut {
    pub(in crate::client) error: io::Error,
    /// Another one would end the same way.
    pub(in crate::client) is_final: bool,
}

impl Cut {
    /// Of a connection that was there.
    pub(super) fn of(error: io::Error) -> Self {
        let is_final = crate::client::relay::is_final(&error);
        Self { error, is_final }
    }
}
