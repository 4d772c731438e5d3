//! Who calls over a connection, and whether that is enough.
//!
//! A function whose transport is encrypted (`nearpath.io/transport`: `quic`, `tls13`, `tls12`) answers plain HTTP to health checks
//! alone, wherever they come from: what stands between is not known here, and a machine's probes speak nothing else. Over TLS the
//! peer must be admitted. Refusals are answers in HTTP, because TLS has no words for them.

use std::sync::Arc;
use std::time::SystemTime;

use http::header::CONNECTION;
use http::{HeaderValue, Request, Response, Version};
use nearpath_types::policy::Transport;
use nearpath_types::{PlatformError, Reason};
use nearpath_wire::identity::Refusal;
use nearpath_wire::mutual::Guest;
use nearpath_wire::unseen;

use crate::body::Body;
use crate::health_paths::is_check;
use crate::mode;
use crate::refusal::{self, error};

/// See the module's text.
#[derive(Debug, Clone)]
pub(crate) enum Caller {
    /// Plain HTTP; what the function's callers have to speak.
    Plain(Transport),
    /// Proved who it is.
    Admitted,
    /// Likewise, but is not let in.
    Refused(Arc<Refusal>),
}

impl Caller {
    /// The one at the end of a connection with TLS.
    pub(crate) fn of(guest: &Guest) -> Self {
        match guest.admit(SystemTime::now()) {
            Ok(_) => Self::Admitted,
            Err(refusal) => Self::Refused(Arc::new(refusal)),
        }
    }

    /// Why a request on this path is not looked at.
    pub(crate) fn refusal(&self, path: &str) -> Option<PlatformError> {
        match self {
            Self::Admitted | Self::Plain(Transport::Auto | Transport::Tcp) => None,
            Self::Plain(_) if is_check(path) => None,
            Self::Plain(transport) => Some(unencrypted(*transport)),
            Self::Refused(refusal) => Some(error(Reason::NotAllowed, refusal.to_string())),
        }
    }
}

fn unencrypted(transport: Transport) -> PlatformError {
    let text = format!("the function is called over {transport}: without encryption only health checks are answered");
    error(Reason::NotAllowed, text).governed_by(nearpath_types::policy::TRANSPORT)
}

/// The answer to a request that is not looked at; its connection ends with it.
pub(crate) fn turn_away<B>(request: &Request<B>, fault: &PlatformError) -> Response<Body> {
    let mut response = refusal::answer(fault);
    unseen::mark(response.headers_mut(), Some(fault.reason));
    match request.version() {
        Version::HTTP_2 if mode::is_grpc(request.headers()) => refusal::in_grpc(response, fault),
        Version::HTTP_2 => response,
        _ => {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_calls_are_for_functions_that_ask_for_nothing_else() {
        let refused = |transport, path| Caller::Plain(transport).refusal(path).is_some();
        for path in ["/", "/_/health", "/_/ready", "/_/healthy"] {
            assert!(!refused(Transport::Auto, path) && !refused(Transport::Tcp, path), "{path}");
            for transport in [Transport::Quic, Transport::Tls13, Transport::Tls12] {
                assert_eq!(refused(transport, path), !["/_/health", "/_/ready"].contains(&path), "{transport} {path}");
            }
        }
    }

    #[test]
    fn a_refused_peer_is_told_why_whatever_it_asks() {
        let caller = Caller::Refused(Arc::new(Refusal::NoCertificate));
        for path in ["/", "/_/health"] {
            let fault = caller.refusal(path).unwrap();
            assert_eq!((fault.reason, fault.reason.status()), (Reason::NotAllowed, 403));
            assert!(fault.to_string().contains("showed no certificate"), "{fault}");
        }
    }
}
