//! Header fields of a plain request that concern this hop.

use http::HeaderName;
use nearpath_types::platform_field::{CALLER_FIELD, FUNCTION_FIELD, is_platform_field};
use nearpath_wire::hop::headers::{CALLER, FUNCTION, is_valid_host};
use nearpath_wire::hop::timeout::X_TIMEOUT;

use crate::request::names_stream;

/// Start and end offset in the request. 16 bits keep the layout small; a longer head is not
/// plain.
pub(super) type ByteSpan = (u16, u16);

/// Fields with which another node describes its call (`contract/node.md`). Read from nodes only: a client's
/// `X-Timeout` is an option of the gateway.
#[derive(Debug, Default)]
pub(super) struct NodeFields {
    /// Called function.
    pub(super) function: Option<ByteSpan>,
    /// Calling function.
    pub(super) caller: Option<ByteSpan>,
    /// Time for which the node waits.
    pub(super) timeout: Option<ByteSpan>,
}

impl NodeFields {
    /// Returns the span of a field's value, to be filled in; `None`: the field is of another kind.
    pub(super) fn span_mut(&mut self, name: &str) -> Option<&mut Option<ByteSpan>> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        match name.len() {
            9 if is("x-timeout") => Some(&mut self.timeout),
            17 if is(CALLER_FIELD) => Some(&mut self.caller),
            19 if is(FUNCTION_FIELD) => Some(&mut self.function),
            _ => None,
        }
    }

    /// Iterates over the fields that are there.
    pub(super) fn named(&self) -> impl Iterator<Item = (HeaderName, ByteSpan)> {
        let named = [
            (FUNCTION, self.function),
            (CALLER, self.caller),
            (X_TIMEOUT, self.timeout),
        ];
        let present = |(name, span): (_, Option<ByteSpan>)| Some((name, span?));
        named.into_iter().filter_map(present)
    }
}

/// Facts from headers that concern this hop.
#[derive(Debug, Default)]
pub(super) struct HopHeaders {
    pub(super) host_count: u32,
    cookie_count: u32,
    forwarded_count: u32,
    pub(super) content_length: Option<usize>,
    pub(super) closes_connection: bool,
    pub(super) has_gateway_options: bool,
    pub(super) wants_path: bool,
}

impl HopHeaders {
    /// Returns whether the header is forwarded; `None`: the request is not plain.
    pub(super) fn note_header(&mut self, name: &str, value: &[u8]) -> Option<bool> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        // By length first: most names are then decided without a comparison.
        match name.len() {
            4 if is("host") => {
                self.host_count += 1;
                // The pipeline refuses it.
                return is_valid_host(value).then_some(true);
            }
            // The pipeline joins several of these to one.
            6 if is("cookie") => {
                self.cookie_count += 1;
                return (self.cookie_count == 1).then_some(true);
            }
            15 if is("x-forwarded-for") => {
                self.forwarded_count += 1;
                return (self.forwarded_count == 1).then_some(true);
            }
            9 if is("forwarded") => return Some(false),

            10 if is("connection") => {
                let closes = value.eq_ignore_ascii_case(b"close");
                self.closes_connection |= closes;
                // Any other token names a field to strip (RFC 9110 section 7.6.1), which hyper's
                // path does.
                return (closes || value.eq_ignore_ascii_case(b"keep-alive")).then_some(false);
            }
            14 if is("content-length") => {
                // Two lengths allow request smuggling (RFC 9112 section 6.3), even if they are
                // equal.
                let first = self.content_length.replace(parse_length(value)?).is_none();
                return first.then_some(true);
            }
            6 if is("accept") => {
                self.has_gateway_options |= !value.starts_with(b"*/*") && names_stream(value)
            }
            9 if is("x-timeout") => self.has_gateway_options = true,
            12 if is("grpc-timeout") => self.has_gateway_options = true,
            12 if is("content-type") => {
                self.has_gateway_options |= value.starts_with(b"application/grpc")
            }
            15 if is("x-nearpath-path") => self.wants_path = true,
            2 if is("te") => return None,
            6 if is("expect") => return None,
            7 if is("upgrade") || is("trailer") => return None,
            10 if is("keep-alive") => return None,
            16 if is("proxy-connection") => return None,
            // Framing by chunks, and with it every conflict of framings, is left to hyper.
            17 if is("transfer-encoding") => return None,
            18 if is("proxy-authenticate") => return None,
            19 if is("proxy-authorization") => return None,
            11.. => return Some(!is_platform_name(name)),
            _ => {}
        }
        Some(true)
    }
}

/// Returns whether only the platform may set a header; callers' ones are not forwarded.
fn is_platform_name(name: &str) -> bool {
    // Names come as the caller wrote them; only few are as long and begin alike.
    name.as_bytes()[0].eq_ignore_ascii_case(&b'x') && is_platform_field(&name.to_ascii_lowercase())
}

/// Parses a length: digits only (RFC 9110 section 8.6). `str::parse` alone would accept a plus
/// sign.
fn parse_length(value: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(value)
        .ok()
        .filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok()
}
