//! Basic authentication (RFC 7617) in front of everything but the open paths, and no orders from other sites' pages.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, Uri, header};
use nearpath_types::Reason;

use super::refused::Refused;
use super::site;
use crate::controller::Controller;
use crate::credentials::Credentials;

pub(crate) async fn check(State(controller): State<Controller>, request: Request, next: Next) -> Response {
    match admit(controller.credentials(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// Where another site's page asks, there is no question for a password: a browser would put it to its user.
fn admit(wanted: Option<&Credentials>, uri: &Uri, headers: &HeaderMap) -> Result<(), Refused> {
    let is_order = uri.path().starts_with("/system/");
    if is_order {
        site::check_page(uri, headers)?;
    }
    match wanted {
        // an empty `Bearer`, which OpenFaaS's clients send without a login, is as good as nothing
        None if is_order => Ok(site::check_name(uri, headers)?),
        None => Ok(()),
        Some(wanted) if is_open(uri.path()) || carries(headers, wanted) => Ok(()),
        Some(_) => Err(Refused::new(Reason::Unauthorized, "invalid credentials")),
    }
}

/// What anybody may ask. Everything that is not listed here is closed, whether it exists or not.
fn is_open(path: &str) -> bool {
    path == "/healthz" || path.starts_with("/async-function/")
}

fn carries(headers: &HeaderMap, wanted: &Credentials) -> bool {
    let Some(pair) = headers.get(header::AUTHORIZATION).and_then(|value| basic(value.as_bytes())) else { return false };
    let Some(colon) = pair.iter().position(|byte| *byte == b':') else { return false };
    wanted.matches(&pair[..colon], &pair[colon + 1..])
}

/// The decoded `USER:PASSWORD` of a `Basic` value; the scheme's name is case-insensitive.
pub fn basic(value: &[u8]) -> Option<Vec<u8>> {
    let (scheme, token) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") {
        return None;
    }
    STANDARD.decode(token.trim_ascii()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn admin() -> Credentials {
        Credentials { user: "admin".into(), password: "pass:word".into() }
    }

    fn passes(value: &[u8]) -> bool {
        let Ok(value) = HeaderValue::from_bytes(value) else { return false };
        carries(&HeaderMap::from_iter([(header::AUTHORIZATION, value)]), &admin())
    }

    #[test]
    fn only_the_right_pair_passes() {
        assert!(passes(b"Basic YWRtaW46cGFzczp3b3Jk")); // a colon may be in the password
        assert!(passes(b"basic  YWRtaW46cGFzczp3b3Jk "));
        for wrong in [
            "",
            "Basic",
            "Basic ",
            "Bearer ",
            "Bearer YWRtaW46cGFzczp3b3Jk",
            "Basic YWRtaW46",
            "Basic YWRtaW4=",
            "Basic ???",
        ] {
            assert!(!passes(wrong.as_bytes()), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_answered(value in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(!passes(&value));
        }
    }
}
