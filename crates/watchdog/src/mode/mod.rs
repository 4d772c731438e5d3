//! The four ways to speak to the tenant's code. Each is a struct with the same `answer`.

mod fork;
mod http;
mod serializing;
mod r#static;
mod streaming;

use ::http::{Request, Response};
use nearpath_types::PlatformError;
use tokio::time::Instant;

use crate::arrival::Arrival;
use crate::body::Body;
use crate::inbound::Upload;
use crate::tunnel::Tunnel;

pub(crate) use self::fork::Forks;
pub(crate) use self::http::{Http, Started, is_grpc};
pub(crate) use self::serializing::Serializing;
pub(crate) use self::r#static::Static;
pub use self::r#static::decode;
pub(crate) use self::streaming::Streaming;

/// One request, when it came, and what its deadline wants to know of its body.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) request: Request<Arrival>,
    pub(crate) began: Instant,
    pub(crate) upload: Upload,
}

/// What a mode made of a call.
#[derive(Debug)]
pub(crate) enum Answer {
    Plain(Response<Body>),
    /// A 101, and the bytes that follow it.
    Upgraded(Response<Body>, Tunnel),
}

impl Answer {
    /// The answer alone; a tunnel is given up.
    pub(crate) fn into_response(self) -> Response<Body> {
        match self {
            Self::Plain(response) | Self::Upgraded(response, _) => response,
        }
    }
}

/// The mode that this instance runs in.
#[derive(Debug)]
pub(crate) enum Mode {
    Http(Http),
    Streaming(Streaming),
    Serializing(Serializing),
    Static(Static),
}

impl Mode {
    /// Answers one call. Dropping the future gives the call up and ends what it started.
    ///
    /// # Errors
    /// When the tenant's code could not be called or did not answer.
    pub(crate) async fn answer(&self, call: Call) -> Result<Answer, PlatformError> {
        match self {
            Self::Http(mode) => mode.answer(call).await,
            Self::Streaming(mode) => mode.answer(call).await,
            Self::Serializing(mode) => mode.answer(call).await,
            Self::Static(mode) => mode.answer(call).await,
        }
    }

    /// Whether calls can be answered now.
    pub(crate) fn started(&self) -> bool {
        match self {
            Self::Http(mode) => mode.started.is_set(),
            _ => true,
        }
    }
}
