//! Basic authentication (RFC 7617) for everything but the public paths, and protection against
//! requests of other web sites.

use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, header};
use nearpath_types::{Reason, SourceNetwork};

use super::api_error::ApiError;
use super::request_origin;
use crate::admin_logins::LoginRefusal;
use crate::controller::Controller;
use crate::credentials::AdminCredentials;

/// Mark of responses to requests that no administrator has to have sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnswerToAnybody;

pub(crate) async fn authenticate(
    State(controller): State<Controller>,
    request: Request,
    next: Next,
) -> Response {
    let (checked, is_public) = (
        check_request(&controller, &request),
        is_public_path(request.uri().path()),
    );
    let is_answer_to_anybody = is_public || checked.is_err();
    let mut response = match checked {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    if is_answer_to_anybody {
        response.extensions_mut().insert(AnswerToAnybody);
    }
    response
}

/// Checks a request. Requests of other sites' pages get no password challenge: a browser would show
/// it to its user.
fn check_request(controller: &Controller, request: &Request) -> Result<(), ApiError> {
    let (uri, headers) = (request.uri(), request.headers());
    let is_system_call = uri.path().starts_with("/system/");
    // Before the password: a browser may attach stored credentials to a foreign page's request.
    if is_system_call {
        request_origin::check_origin(uri, headers)?;
    }
    match controller.credentials() {
        // OpenFaaS's clients send an empty `Bearer` without a login: the header is ignored.
        None if is_system_call => Ok(request_origin::check_host(uri, headers)?),
        None => Ok(()),
        Some(_) if is_public_path(uri.path()) => Ok(()),
        Some(wanted) => {
            let login = login_of(headers).ok_or_else(invalid_credentials)?;
            let source = request.extensions().get().copied();
            let is_right = has_credentials(&login, wanted);
            let counted = controller.inner.logins.count(source, is_right);
            counted.map_err(|refusal| login_error(source, refusal))
        }
    }
}

fn login_error(source: Option<SourceNetwork>, refusal: LoginRefusal) -> ApiError {
    match (refusal, source) {
        (LoginRefusal::LockedOut(rest), Some(source)) => locked_error(source, rest),
        _ => invalid_credentials(),
    }
}

fn invalid_credentials() -> ApiError {
    ApiError::new(Reason::Unauthorized, "invalid credentials")
}

fn locked_error(source: SourceNetwork, rest: Duration) -> ApiError {
    let text = format!(
        "too many wrong passwords came from {source}: no login of it is checked for {rest:.0?}"
    );
    ApiError::new(Reason::LoginLocked, text).retry_after(rest)
}

/// Paths without authentication. All others require it, whether they exist or not.
fn is_public_path(path: &str) -> bool {
    path == "/healthz" || path.starts_with("/async-function/")
}

/// Returns the `USER:PASSWORD` of a request. Without one it is no login, and no guess.
fn login_of(headers: &HeaderMap) -> Option<Vec<u8>> {
    decode_basic(headers.get(header::AUTHORIZATION)?.as_bytes())
}

fn has_credentials(pair: &[u8], required: &AdminCredentials) -> bool {
    // The first colon ends the user name; a password may contain more (RFC 7617, section 2).
    let Some(colon) = pair.iter().position(|byte| *byte == b':') else {
        return false;
    };
    required.matches(&pair[..colon], &pair[colon + 1..])
}

/// Decodes the `USER:PASSWORD` of a `Basic` value. The scheme's name is case-insensitive.
pub fn decode_basic(value: &[u8]) -> Option<Vec<u8>> {
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

    fn admin() -> AdminCredentials {
        AdminCredentials {
            user: "admin".into(),
            password: "pass:word".into(),
        }
    }

    fn is_accepted(value: &[u8]) -> bool {
        let Ok(value) = HeaderValue::from_bytes(value) else {
            return false;
        };
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
        login_of(&headers).is_some_and(|login| has_credentials(&login, &admin()))
    }

    #[test]
    fn only_the_right_credentials_are_accepted() {
        assert!(is_accepted(b"Basic YWRtaW46cGFzczp3b3Jk")); // a colon may be in the password
        assert!(is_accepted(b"basic  YWRtaW46cGFzczp3b3Jk "));
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
            assert!(!is_accepted(wrong.as_bytes()), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_header_is_answered(value in prop::collection::vec(any::<u8>(), 0..64)) {
            prop_assert!(!is_accepted(&value));
        }
    }
}
