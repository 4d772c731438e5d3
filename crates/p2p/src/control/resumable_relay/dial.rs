//! Where a lasting relay's connections come from.

use std::io;
use std::pin::Pin;

use crate::migrate::Relay;

/// Opens connections to the relay.
pub(in crate::control) trait Dial: Send + Unpin {
    /// What comes of it.
    type Relay: Relay;

    /// Opens one more.
    fn dial(&mut self) -> Dialling<Self::Relay>;
}

/// See [`Dial`].
pub(in crate::control) type Dialling<R> = Pin<Box<dyn Future<Output = Result<R, Cut>> + Send>>;

/// There is no connection, or no more.
#[derive(Debug)]
pub(in crate::control) struct Cut {
    pub(in crate::control) error: io::Error,
    /// Another one would end the same way.
    pub(in crate::control) is_final: bool,
}

impl Cut {
    /// Of a connection that was there.
    pub(super) fn of(error: io::Error) -> Self {
        let is_final = crate::control::relay_stream::is_final(&error);
        Self { error, is_final }
    }
}
