//! Who calls over a connection, and whether that is enough.
//!
//! A function whose transport is encrypted (`nearpath.io/transport`: `quic`, `tls13`, `tls12`) answers plain HTTP to health checks
//! alone, wherever they come from: what stands between is not known here, and a machine's probes speak nothing else. Over TLS the
//! peer must be admitted. Refusals are answers in HTTP, because TLS has no words for them.

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
use crate::mode;
use crate::response_body::WatchdogBody;

/// See the module's text.
#[derive(Debug, Clone)]
pub(crate) enum CallerAccess {
    /// Plain HTTP; what the function's callers have to speak.
    Plain(CallTransport),
    /// Proved who it is.
    Admitted,
    /// Likewise, but is not let in.
    Refused(Arc<PeerRefusal>),
}

impl CallerAccess {
    /// The one at the end of a connection with TLS.
    pub(crate) fn of_peer(peer: &AcceptedPeer) -> Self {
        match peer.admit_peer(SystemTime::now()) {
            Ok(_) => Self::Admitted,
            Err(refusal) => Self::Refused(Arc::new(refusal)),
        }
    }

    /// Why a request on this path is not looked at.
    pub(crate) fn refusal_for(&self, path: &str) -> Option<PlatformError> {
        match self {
            Self::Admitted | Self::Plain(CallTransport::Auto | CallTransport::Tcp) => None,
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

/// The answer to a request that is not looked at; its connection ends with it.
pub(crate) fn refuse_request<B>(
    request: &Request<B>,
    fault: &PlatformError,
) -> Response<WatchdogBody> {
    let mut response = errors::error_response(fault);
    not_run_header::set_not_run(response.headers_mut(), Some(fault.reason));
    match request.version() {
        Version::HTTP_2 if mode::is_grpc(request.headers()) => {
            errors::grpc_error_response(response, fault)
        }
        Version::HTTP_2 => response,
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
            assert!(
                fault.to_string().contains("showed no certificate"),
                "{fault}"
            );
        }
    }
}
