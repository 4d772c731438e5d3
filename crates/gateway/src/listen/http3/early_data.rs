//! Which requests may run before the handshake is complete. Their first packets may have been recorded and sent again by somebody
//! else: a session is used once, but what reads only does no harm even then (RFC 8470 section 4).

use http::Method;
use http::header::HeaderName;

/// Tells a function that its request came so (RFC 8470 section 5.1).
pub(super) const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// Whether a request may run now: it has no body and its method is a safe one (RFC 9110 section 9.2.1).
pub(super) fn may_run_early(method: &Method, has_body: bool) -> bool {
    is_safe_method(method) && !has_body
}

/// `GET`, `HEAD_RESERVE_BYTES` and `OPTIONS`, which have a body only in theory.
pub(super) fn is_safe_method(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_safe_methods_without_body_may_run_early() {
        for method in [Method::GET, Method::HEAD, Method::OPTIONS] {
            assert!(
                may_run_early(&method, false) && !may_run_early(&method, true),
                "{method}"
            );
        }
        let patch_like = Method::from_bytes(b"REPORT").unwrap();
        for method in [
            Method::POST,
            Method::PUT,
            Method::PATCH,
            Method::DELETE,
            Method::TRACE,
            patch_like,
        ] {
            assert!(!may_run_early(&method, false), "{method}");
        }
    }
}
