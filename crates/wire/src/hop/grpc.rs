//! gRPC over HTTP/2 (PROTOCOL-HTTP2.md of gRPC): detection, its deadline, and errors as trailers.

use std::time::Duration;

use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Response, StatusCode};
use nearpath_types::PlatformError;

/// The caller's deadline for the whole call.
pub const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");

/// Returns whether the content of a message is gRPC. Calls are gRPC over HTTP/2 only: the caller
/// checks the version.
pub fn has_grpc_content(headers: &HeaderMap) -> bool {
    // A prefix, because `application/grpc+proto` and the like are gRPC, too.
    headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// Returns whether head or trailers name a status that is a fault of the server, as an HTTP status of 500 or
/// above is: UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE or DATA_LOSS
/// (semantic conventions of OpenTelemetry for gRPC).
pub fn names_fault(fields: &HeaderMap) -> bool {
    let Some(status) = fields.get(GRPC_STATUS) else {
        return false;
    };
    let code = status
        .to_str()
        .ok()
        .and_then(|text| text.parse::<u8>().ok());
    // A value that is no code is UNKNOWN to callers (status codes of gRPC).
    matches!(
        code.filter(|code| *code <= 16).unwrap_or(2),
        2 | 4 | 12..=15
    )
}

/// Parses `grpc-timeout`: at most eight digits and a unit, `H M S m u n`.
pub fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // `str::parse` would accept a sign. Eight digits of hours fit into 64 bits of seconds.
    let is_valid = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let amount: u64 = is_valid.then(|| digits.parse().ok())??;
    Some(match unit {
        "H" => Duration::from_secs(amount * 3600),
        "M" => Duration::from_secs(amount * 60),
        "S" => Duration::from_secs(amount),
        "m" => Duration::from_millis(amount),
        "u" => Duration::from_micros(amount),
        "n" => Duration::from_nanos(amount),
        _ => return None,
    })
}

/// Sets the head of a response with an error, whose body the caller leaves empty: the HTTP status is
/// 200, and the gRPC status is a trailer in the head ("Trailers-Only").
pub fn set_trailers_only<B>(response: &mut Response<B>, error: &PlatformError) {
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, GRPC_TYPE);
    headers.extend(error_trailers(error));
}

/// Returns an error as trailers of a response that has begun.
pub fn error_trailers(error: &PlatformError) -> HeaderMap {
    let message =
        HeaderValue::try_from(error.grpc_message()).expect("only printable ASCII is left");
    HeaderMap::from_iter([
        (GRPC_STATUS, HeaderValue::from(error.reason.grpc_status())),
        (GRPC_MESSAGE, message),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn timeouts_have_one_of_six_units() {
        for (text, nanos) in [
            ("1H", 3_600_000_000_000),
            ("2M", 120_000_000_000),
            ("3S", 3_000_000_000),
        ] {
            assert_eq!(
                parse_timeout(text),
                Some(Duration::from_nanos(nanos)),
                "{text}"
            );
        }
        for (text, nanos) in [("4m", 4_000_000), ("5u", 5_000), ("99999999n", 99_999_999)] {
            assert_eq!(
                parse_timeout(text),
                Some(Duration::from_nanos(nanos)),
                "{text}"
            );
        }
        for bad in ["", "S", "1", "1s", "-1S", "+1S", "123456789S", "1 S", "1é"] {
            assert_eq!(parse_timeout(bad), None, "{bad}");
        }
    }

    #[test]
    fn faults_of_the_server_are_told_from_those_of_the_caller() {
        let is_fault = |text: &'static str| {
            let value = HeaderValue::from_static(text);
            names_fault(&HeaderMap::from_iter([(GRPC_STATUS, value)]))
        };
        let faults: Vec<_> = [
            "0", "1", "2", "3", "4", "5", "7", "8", "12", "13", "14", "15", "16",
        ]
        .into_iter()
        .filter(|text| is_fault(text))
        .collect();
        assert_eq!(faults, ["2", "4", "12", "13", "14", "15"]);
        assert!(is_fault("17") && is_fault("-1") && is_fault(""));
        assert!(!names_fault(&HeaderMap::new()));
    }

    proptest! {
        #[test]
        fn any_timeout_is_read_or_refused(text in ".{0,12}") {
            parse_timeout(&text);
        }
    }
}
