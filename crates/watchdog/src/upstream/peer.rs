//! Kind of an upstream server, for the errors of its connections.

use std::io;

use http::Request;
use hyper::client::conn::TrySendError;
use nearpath_types::{PlatformError, Reason};

use super::UpstreamSendFailure;
use crate::errors::watchdog_error;
use crate::request_body::{RequestBody, UploadStalled, body_error};

/// Kind of an upstream server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpstreamPeer {
    /// The tenant's HTTP server: `connect_failed` while nothing was sent, then it is the function's
    /// fault (`function_failed`).
    Tenant,
    /// The gateway: `connect_failed`, or `response_truncated` once something was sent.
    Gateway,
}

impl UpstreamPeer {
    fn display_name(self) -> &'static str {
        match self {
            Self::Tenant => "the tenant's server",
            Self::Gateway => "the gateway",
        }
    }

    /// Returns the error of a failed connection: the call has not run, and its caller may send it
    /// to another instance.
    pub(super) fn connect_error(self, fault: &io::Error) -> PlatformError {
        let error = watchdog_error(
            Reason::ConnectFailed,
            format!("{} cannot be reached: {fault}", self.display_name()),
        );
        match self {
            Self::Tenant => error.governed_by("upstream_url"),
            Self::Gateway => error,
        }
    }

    /// Returns the error when all HTTP/2 connections are full.
    pub(super) fn overload_error(self, connections: usize) -> PlatformError {
        let text = format!(
            "{} allows no more calls: each of {connections} connections carries all that its \
             SETTINGS_MAX_CONCURRENT_STREAMS permits; set a limit, so that calls wait or go to other instances",
            self.display_name()
        );
        watchdog_error(Reason::Overload, text).governed_by("max_inflight")
    }

    /// Returns the error of a request, and the request itself if nothing of it was sent.
    pub(super) fn send_error(
        self,
        mut fault: TrySendError<Request<RequestBody>>,
    ) -> UpstreamSendFailure {
        let request = fault.take_message();
        let fault = fault.into_error();
        // hyper wraps the error of a request's body, which is the caller's fault and not the
        // server's.
        let body = std::error::Error::source(&fault)
            .filter(|source| fault.is_user() || source.is::<UploadStalled>());
        let error = match body {
            Some(source) => body_error(source),
            None => self.broken_error(&fault),
        };
        (error, request)
    }

    fn broken_error(self, fault: &hyper::Error) -> PlatformError {
        let reason = match self {
            Self::Tenant => Reason::FunctionFailed,
            Self::Gateway => Reason::ResponseTruncated,
        };
        watchdog_error(
            reason,
            format!(
                "{} broke the connection: {}",
                self.display_name(),
                error_chain(fault)
            ),
        )
    }
}

fn error_chain(fault: &dyn std::error::Error) -> String {
    match fault.source() {
        Some(source) => format!("{fault}: {}", error_chain(source)),
        None => fault.to_string(),
    }
}
