//! The four ways to speak to the tenant's code. Each is a struct with the same `answer`.

mod fork;
mod http;
mod serializing;
mod r#static;
mod streaming;

use ::http::{Request, Response};
use nearpath_types::PlatformError;
use tokio::time::Instant;

use crate::incoming_body::IncomingBody;
use crate::request_body::UploadState;
use crate::response_body::WatchdogBody;
use crate::tunnel::UpgradeTunnel;

pub(crate) use self::fork::ProcessSpawner;
pub(crate) use self::http::{HttpMode, ServerReadiness, is_grpc};
pub(crate) use self::serializing::SerializingMode;
pub(crate) use self::r#static::StaticMode;
pub use self::r#static::decode_path;
pub(crate) use self::streaming::StreamingMode;

/// One request, when it came, and what its deadline wants to know of its body.
#[derive(Debug)]
pub(crate) struct ModeCall {
    pub(crate) request: Request<IncomingBody>,
    pub(crate) started_at: Instant,
    pub(crate) upload: UploadState,
}

/// What a mode made of a call.
#[derive(Debug)]
pub(crate) enum ModeResponse {
    Plain(Response<WatchdogBody>),
    /// A 101, and the bytes that follow it.
    Upgraded(Response<WatchdogBody>, UpgradeTunnel),
}

impl ModeResponse {
    /// The answer alone; a tunnel is given up.
    pub(crate) fn into_response(self) -> Response<WatchdogBody> {
        match self {
            Self::Plain(response) | Self::Upgraded(response, _) => response,
        }
    }
}

/// The mode that this instance runs in.
#[derive(Debug)]
pub(crate) enum ModeHandler {
    Http(HttpMode),
    Streaming(StreamingMode),
    Serializing(SerializingMode),
    Static(StaticMode),
}

impl ModeHandler {
    /// Answers one call. Dropping the future gives the call up and ends what it started.
    ///
    /// # Errors
    /// When the tenant's code could not be called or did not answer.
    pub(crate) async fn handle_call(&self, call: ModeCall) -> Result<ModeResponse, PlatformError> {
        match self {
            Self::Http(mode) => mode.handle_call(call).await,
            Self::Streaming(mode) => mode.handle_call(call).await,
            Self::Serializing(mode) => mode.handle_call(call).await,
            Self::Static(mode) => mode.handle_call(call).await,
        }
    }

    /// Whether calls can be answered now.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Self::Http(mode) => mode.readiness.is_ready(),
            _ => true,
        }
    }
}
