//! Access of a connection: plain or authenticated, and the requests that it may make.
//!
//! A function with an encrypted transport (`nearpath.io/transport`: `quic`, `tls13`, `tls12`)
//! answers only health checks over plain HTTP, from any address: probes speak nothing else. Over
//! TLS the peer must be admitted by its certificate. Refusals are HTTP responses, because TLS
//! alerts carry no text.

use std::sync::Arc;
use std::time::SystemTime;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use nearpath_types::policy::CallTransport;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::identity::PeerRefusal;
use nearpath_wire::mtls::AcceptedPeer;
use nearpath_wire::not_run_header;

use crate::errors::{self, watchdog_error};
use crate::health_paths::is_health_check;
use crate::response_body::WatchdogBody;
use nearpath_wire::hop::grpc::has_grpc_content;

/// Access of one connection.
#[derive(Debug, Clone)]
pub(crate) enum CallerAccess {
    /// Plain HTTP, with the transport that the function asks for.
    Plain(CallTransport),
    /// Authenticated peer that is admitted.
    Admitted,
    /// Authenticated peer that is refused, with the reason.
    Refused(Arc<PeerRefusal>),
}

impl CallerAccess {
    /// Checks the peer of a TLS connection.
    pub(crate) fn of_peer(peer: &AcceptedPeer) -> Self {
        // Checked for each connection: a resumed session does not check the certificate again (ADR
        // 23).
        match peer.admit_peer(SystemTime::now()) {
            Ok(_) => Self::Admitted,
            Err(refusal) => Self::Refused(Arc::new(refusal)),
        }
    }

    /// Returns the error for a request on this path, or `None` if it may be handled.
    pub(crate) fn refusal_for(&self, path: &str) -> Option<PlatformError> {
        match self {
            Self::Admitted | Self::Plain(CallTransport::Auto | CallTransport::Tcp) => None,
            // Before the refusal: probes of machines and containers speak plain HTTP.
            Self::Plain(_) if is_health_check(path) => None,
            Self::Plain(transport) => Some(encryption_required(*transport)),
            Self::Refused(refusal) => Some(watchdog_error(Reason::NotAllowed, refusal.to_string())),
        }
    }
}

fn encryption_required(transport: CallTransport) -> PlatformError {
    let text = format!(
        "the function is called over {transport}: without encryption only health checks are answered"
    );
    watchdog_error(Reason::NotAllowed, text).governed_by(nearpath_types::policy::TRANSPORT)
}

/// Builds the response to a refused request. An HTTP/1.1 connection closes with it.
pub(crate) fn refuse_request<B>(
    request: &Request<B>,
    fault: &PlatformError,
) -> Response<WatchdogBody> {
    let mut response = errors::error_response(fault);
    // The mark tells the gateway that nothing ran, so that it may send the call elsewhere.
    not_run_header::set_not_run(response.headers_mut(), Some(fault.reason));
    match request.version() {
        Version::HTTP_2 if has_grpc_content(request.headers()) => {
            errors::grpc_error_response(response, fault)
        }
        Version::HTTP_2 => response,
        // HTTP/2 has no `Connection` header (RFC 9113 section 8.2.2), and its other streams go on.
        _ => {
            response
                .headers_mut()
                .insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_calls_are_for_functions_that_ask_for_nothing_else() {
        let refused = |transport, path| CallerAccess::Plain(transport).refusal_for(path).is_some();
        for path in ["/", "/_/health", "/_/ready", "/_/healthy"] {
            assert!(
                !refused(CallTransport::Auto, path) && !refused(CallTransport::Tcp, path),
                "{path}"
            );
            for transport in [
                CallTransport::Quic,
                CallTransport::Tls13,
                CallTransport::Tls12,
            ] {
                assert_eq!(
                    refused(transport, path),
                    !["/_/health", "/_/ready"].contains(&path),
                    "{transport} {path}"
                );
            }
        }
    }

    #[test]
    fn a_refused_peer_gets_the_reason_on_every_path() {
        let caller = CallerAccess::Refused(Arc::new(PeerRefusal::NoCertificate));
        for path in ["/", "/_/health"] {
            let fault = caller.refusal_for(path).unwrap();
            assert_eq!(
                (fault.reason, fault.reason.status()),
                (Reason::NotAllowed, 403)
            );
            assert!(fault.to_string().contains("sent no certificate"), "{fault}");
        }
    }
}
