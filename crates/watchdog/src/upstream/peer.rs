//! Who a server is, for the texts of what went wrong with it.

use std::io;

use http::Request;
use hyper::client::conn::TrySendError;
use nearpath_types::{PlatformError, Reason};

use super::Failed;
use crate::inbound::{Inbound, Silent, broken};
use crate::refusal::error;

/// See the module's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The tenant's HTTP server: `connect_failed` while nothing was sent, then it is the function's fault (`function_failed`).
    Tenant,
    /// The gateway: `connect_failed`, or `response_cut` once something was sent.
    Gateway,
}

impl Peer {
    fn name(self) -> &'static str {
        match self {
            Self::Tenant => "the tenant's server",
            Self::Gateway => "the gateway",
        }
    }

    /// No connection could be made: the call has not run, and whoever made it may send it to another instance.
    pub(super) fn unreachable(self, fault: &io::Error) -> PlatformError {
        let error = error(Reason::ConnectFailed, format!("{} cannot be reached: {fault}", self.name()));
        match self {
            Self::Tenant => error.governed_by("upstream_url"),
            Self::Gateway => error,
        }
    }

    /// Its HTTP/2 connections are full.
    pub(super) fn full(self, connections: usize) -> PlatformError {
        let text = format!(
            "{} allows no more calls: each of {connections} connections carries all that its \
             SETTINGS_MAX_CONCURRENT_STREAMS permits; set a limit, so that calls wait or go to other instances",
            self.name()
        );
        error(Reason::Overload, text).governed_by("max_inflight")
    }

    /// What became of a request, and the request itself if nothing of it was sent.
    pub(super) fn explain(self, mut fault: TrySendError<Request<Inbound>>) -> Failed {
        let request = fault.take_message();
        let fault = fault.into_error();
        let body = std::error::Error::source(&fault).filter(|source| fault.is_user() || source.is::<Silent>());
        let error = match body {
            Some(source) => broken(source),
            None => self.broke_off(&fault),
        };
        (error, request)
    }

    fn broke_off(self, fault: &hyper::Error) -> PlatformError {
        let reason = match self {
            Self::Tenant => Reason::FunctionFailed,
            Self::Gateway => Reason::ResponseCut,
        };
        error(reason, format!("{} broke the connection: {}", self.name(), chain(fault)))
    }
}

fn chain(fault: &dyn std::error::Error) -> String {
    match fault.source() {
        Some(source) => format!("{fault}: {}", chain(source)),
        None => fault.to_string(),
    }
}
