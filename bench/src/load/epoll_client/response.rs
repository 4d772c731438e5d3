//! Parser of responses: length and success. Pure.

use std::io;

use crate::tally::RequestFailure;

/// Maximum of headers; more than any compared program sends.
const MAX_HEADERS: usize = 32;
/// Largest response, head and body.
const MAX_RESPONSE_BYTES: usize = 1 << 20;

/// Lengths and status of a response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResponseShape {
    status: u16,
    reason: String,
    head: usize,
    length: usize,
    /// The server closes the connection after the response.
    pub(super) last: bool,
}

impl ResponseShape {
    /// Parses a head; `None` until the whole head is available.
    ///
    /// # Errors
    /// When it is no HTTP, has no `Content-Length` (all compared programs send one), or is too
    /// large.
    pub(super) fn parse_head(bytes: &[u8]) -> io::Result<Option<Self>> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        // On the stack: no allocation for an answer.
        let mut fields = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut fields);
        let httparse::Status::Complete(head) = response.parse(bytes).map_err(|_| invalid())? else {
            return Ok(None);
        };
        let field = |name: &str| {
            response
                .headers
                .iter()
                .find(|field| field.name.eq_ignore_ascii_case(name))
        };
        let text = |name: &str| std::str::from_utf8(field(name)?.value).ok();
        let shape = Self {
            status: response.code.ok_or_else(invalid)?,
            reason: text("x-nearpath-reason").unwrap_or_default().to_owned(),
            head,
            length: text("content-length")
                .and_then(|text| text.parse().ok())
                // Chunked answers are an error here instead of a slow path that would distort a
                // comparison.
                .ok_or_else(invalid)?,
            // HTTP/1.1 keeps a connection unless told otherwise (RFC 9112, section 9.3).
            last: text("connection").is_some_and(|text| text.eq_ignore_ascii_case("close")),
        };
        (shape.total_bytes() <= MAX_RESPONSE_BYTES)
            .then_some(Some(shape))
            .ok_or_else(invalid)
    }

    /// Returns the bytes of head and body.
    pub(super) fn total_bytes(&self) -> usize {
        // The length is the server's claim and may be as large as usize.
        self.head.saturating_add(self.length)
    }

    /// Returns the body if the status is a success. `bytes` are at least
    /// [`ResponseShape::total_bytes`].
    pub(super) fn success_body<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], RequestFailure> {
        match self.status {
            200..300 => Ok(&bytes[self.head..self.total_bytes()]),
            status => Err(RequestFailure::Status(status, self.reason.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn heads() {
        let text = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nConnection: Close\r\n\r\nok";
        let shape = ResponseShape::parse_head(text).unwrap().unwrap();
        assert_eq!(
            (shape.total_bytes(), shape.last, shape.success_body(text)),
            (text.len(), true, Ok(&b"ok"[..]))
        );
        assert_eq!(ResponseShape::parse_head(&text[..20]).unwrap(), None);
        assert!(
            ResponseShape::parse_head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
                .is_err()
        );
        assert!(
            ResponseShape::parse_head(
                b"HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n"
            )
            .is_err()
        );
        assert!(ResponseShape::parse_head(b"nonsense\r\n\r\n").is_err());
    }

    #[test]
    fn a_refusal_has_its_reason() {
        let text =
            b"HTTP/1.1 429 Too Many\r\nContent-Length: 0\r\nX-Nearpath-Reason: queue_full\r\n\r\n";
        let shape = ResponseShape::parse_head(text).unwrap().unwrap();
        assert_eq!(
            shape.success_body(text),
            Err(RequestFailure::Status(429, "queue_full".into()))
        );
    }

    proptest! {
        #[test]
        fn any_bytes_parse_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = ResponseShape::parse_head(&bytes);
        }
    }
}
