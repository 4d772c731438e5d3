//! Percent-encoding of names that devices send, so that each makes a valid URL (RFC 3986 section
//! 3.3).

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Characters to encode in a path segment: all that RFC 3986 does not allow there as they are.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~')
    .remove(b':')
    .remove(b'@')
    .remove(b',');
/// Characters to encode in one argument of a query.
const ARGUMENT: &AsciiSet = &SEGMENT
    .remove(b'=')
    .remove(b'/')
    .remove(b'?')
    .remove(b';')
    .remove(b'+');

/// Encodes a segment of a path.
pub(crate) fn encode_segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// Encodes an argument of a query.
pub(crate) fn encode_argument(text: &str) -> String {
    utf8_percent_encode(text, ARGUMENT).to_string()
}
