//! HTTP statuses and content types as CoAP codes and formats, and back (RFC 7252 section 12, RFC
//! 8075).

use coap_lite::ResponseType;
use http::Method;

/// Maps an HTTP status to a CoAP code. Codes of success depend on the method (RFC 7252 section
/// 5.9.1).
///
/// `is_fetch`: the request is CoAP's FETCH (RFC 8132), which HTTP's methods do not include.
pub(super) fn response_code(status: u16, method: &Method, is_fetch: bool) -> ResponseType {
    use ResponseType as R;
    match status {
        201 => R::Created,
        200..=299 if *method == Method::GET || is_fetch => R::Content,
        200..=299 if *method == Method::DELETE => R::Deleted,
        200..=299 => R::Changed,
        304 => R::Valid,
        401 => R::Unauthorized,
        403 => R::Forbidden,
        404 | 410 => R::NotFound,
        405 => R::MethodNotAllowed,
        406 => R::NotAcceptable,
        409 => R::Conflict,
        412 => R::PreconditionFailed,
        413 => R::RequestEntityTooLarge,
        415 => R::UnsupportedContentFormat,
        422 => R::UnprocessableEntity,
        429 => R::TooManyRequests,
        400..=499 => R::BadRequest,
        501 => R::NotImplemented,
        502 => R::BadGateway,
        503 => R::ServiceUnavailable,
        504 => R::GatewayTimeout,
        300..=399 => R::BadGateway, // CoAP has no redirections
        _ => R::InternalServerError,
    }
}

/// CoAP Content-Formats of IANA's registry that functions are likely to use, with their media
/// types.
const FORMATS: [(u16, &str); 14] = [
    (0, "text/plain; charset=utf-8"),
    (40, "application/link-format"),
    (41, "application/xml"),
    (42, "application/octet-stream"),
    (47, "application/exi"),
    (50, "application/json"),
    (51, "application/json-patch+json"),
    (52, "application/merge-patch+json"),
    (60, "application/cbor"),
    (61, "application/cwt"),
    (63, "application/cbor-seq"),
    (110, "application/senml+json"),
    (112, "application/senml+cbor"),
    (432, "application/td+json"),
];

/// Returns the HTTP content type of a CoAP Content-Format number.
pub(super) fn content_type(content_format: u16) -> Option<&'static str> {
    FORMATS
        .iter()
        .find(|(number, _)| *number == content_format)
        .map(|(_, name)| *name)
}

/// Returns the CoAP Content-Format number of an HTTP content type.
pub(super) fn content_format(content_type: &str) -> Option<u16> {
    // Parameters are ignored, because functions differ in writing `charset`.
    let media_type = |name: &str| {
        name.split(';')
            .next()
            .unwrap_or("")
            .trim()
            .to_ascii_lowercase()
    };
    let wanted = media_type(content_type);
    FORMATS
        .iter()
        .find(|(_, name)| media_type(name) == wanted)
        .map(|(number, _)| *number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_codes_depend_on_the_method() {
        for (status, method, expected) in [
            (200, Method::GET, ResponseType::Content),
            (200, Method::POST, ResponseType::Changed),
            (201, Method::PUT, ResponseType::Created),
            (204, Method::DELETE, ResponseType::Deleted),
            (418, Method::GET, ResponseType::BadRequest),
            (599, Method::GET, ResponseType::InternalServerError),
        ] {
            assert_eq!(
                response_code(status, &method, false),
                expected,
                "{status} {method}"
            );
        }
        assert_eq!(
            response_code(200, &Method::POST, true),
            ResponseType::Content
        );
    }

    #[test]
    fn formats_and_types_map_both_ways() {
        for (number, name) in FORMATS {
            assert_eq!(
                (content_type(number), content_format(name)),
                (Some(name), Some(number))
            );
        }
        assert_eq!(content_format("Text/Plain"), Some(0));
        assert_eq!(content_format("image/png"), None);
    }
}
