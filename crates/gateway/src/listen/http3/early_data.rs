//! Requests that may run before the handshake is complete. Their packets may be replayed by an
//! attacker. A session is used only once, and a safe method does no harm even when replayed (RFC
//! 8470 section 4).

use http::Method;
use http::header::HeaderName;

/// Tells a function that its request was sent in early data (RFC 8470 section 5.1).
pub(super) const EARLY_DATA: HeaderName = HeaderName::from_static("early-data");

/// Returns whether a request may run early: it has no body and a safe method (RFC 9110 section
/// 9.2.1).
pub(super) fn may_run_early(method: &Method, has_body: bool) -> bool {
    is_safe_method(method) && !has_body
}

/// Returns whether a method is safe: `GET`, `HEAD` or `OPTIONS`, which have a body only in
/// theory.
pub(super) fn is_safe_method(method: &Method) -> bool {
    // All other methods get 425 (ADR 25): the client repeats them after the handshake.
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
