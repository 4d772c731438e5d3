//! Modes of running the tenant's code. Each is a struct with the same `handle_call`.

mod fork;
mod http;
mod serializing;
mod server_check;
mod r#static;
mod streaming;
mod tenant_body;

use ::http::{Request, Response};
use nearpath_types::PlatformError;
use tokio::time::Instant;

use crate::incoming_body::IncomingBody;
use crate::request_body::UploadState;
use crate::response_body::WatchdogBody;
use crate::tunnel::UpgradeTunnel;

pub(crate) use self::fork::ProcessSpawner;
pub(crate) use self::http::{HttpMode, ServerReadiness};
pub(crate) use self::serializing::SerializingMode;
pub(crate) use self::r#static::StaticMode;
pub use self::r#static::decode_path;
pub(crate) use self::streaming::StreamingMode;

/// Request with its arrival time and the state of its upload.
#[derive(Debug)]
pub(crate) struct ModeCall {
    pub(crate) request: Request<IncomingBody>,
    pub(crate) started_at: Instant,
    pub(crate) upload: UploadState,
}

/// Response of a mode.
#[derive(Debug)]
pub(crate) enum ModeResponse {
    Plain(Response<WatchdogBody>),
    /// Status 101, and the tunnel that follows it.
    Upgraded(Response<WatchdogBody>, UpgradeTunnel),
}

impl ModeResponse {
    /// Returns the response alone; a tunnel is dropped.
    pub(crate) fn into_response(self) -> Response<WatchdogBody> {
        match self {
            Self::Plain(response) | Self::Upgraded(response, _) => response,
        }
    }
}

/// Mode of this instance.
#[derive(Debug)]
pub(crate) enum ModeHandler {
    Http(HttpMode),
    Streaming(StreamingMode),
    Serializing(SerializingMode),
    Static(StaticMode),
}

impl ModeHandler {
    /// Handles one call. Dropping the future cancels the call and ends what it started.
    ///
    /// # Errors
    /// When the tenant's code could not be called or did not respond.
    pub(crate) async fn handle_call(&self, call: ModeCall) -> Result<ModeResponse, PlatformError> {
        match self {
            Self::Http(mode) => mode.handle_call(call).await,
            Self::Streaming(mode) => mode.handle_call(call).await,
            Self::Serializing(mode) => mode.handle_call(call).await,
            Self::Static(mode) => mode.handle_call(call).await,
        }
    }

    /// Returns whether the tenant's code may be a server in a mode that starts a process per call.
    pub(crate) fn may_be_server(&self) -> bool {
        match self {
            Self::Streaming(mode) => mode.may_be_server(),
            Self::Serializing(mode) => mode.may_be_server(),
            Self::Http(_) | Self::Static(_) => false,
        }
    }

    /// Closes connections to the tenant's server that carry no call.
    pub(crate) fn close_idle_connections(&self) {
        if let Self::Http(mode) = self {
            mode.close_idle_connections();
        }
    }

    /// Returns whether calls can be handled now.
    pub(crate) fn is_ready(&self) -> bool {
        match self {
            Self::Http(mode) => mode.readiness.is_ready(),
            // The other modes start a process per call or none at all.
            _ => true,
        }
    }
}
