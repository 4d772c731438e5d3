//! Parser for the heads of HTTP/1.1 responses (RFC 9112), without a socket.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use nearpath_types::Reason;
use nearpath_wire::not_run_header;

/// Maximum number of header fields of a response, as the watchdog allows.
const MAX_HEADERS: usize = 128;
/// Maximum bytes of a response's head.
pub(super) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Maximum informational heads before the final one.
const MAX_INFORMATIONAL_HEADS: u32 = 100;
const LENGTH_NAME: &[u8] = b"content-length";

/// End of a response's body (RFC 9112 section 6.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyFraming {
    /// After so many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// When the server closes the connection.
    UntilClose,
}

/// Cause for which a response is not HTTP/1.1 with one meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidResponse {
    /// The head is not HTTP/1.
    #[error("its head is not HTTP/1.1 (RFC 9112 section 2)")]
    Head,
    /// The head has too many bytes or fields.
    #[error("its head is larger than 64 KiB or has more than 128 fields")]
    TooLarge,
    /// Too many informational heads precede the final one.
    #[error("more than 100 informational heads precede the final one (RFC 9110 section 15.2)")]
    Informational,
    /// The server changes the protocol, which no request asks for.
    #[error(
        "status 101 changes a protocol that the request did not ask to change (RFC 9110 section 15.2.2)"
    )]
    SwitchingProtocols,
    /// Length and transfer coding contradict each other, or are unknown.
    #[error("the length of its body is ambiguous (RFC 9112 section 6.3)")]
    Framing,
    /// The body is not in chunks as announced.
    #[error("its chunked body is not framed as RFC 9112 section 7.1 says")]
    Chunk,
}

/// A response's head.
#[derive(Debug)]
pub struct ResponseHead {
    /// Final status, 200 to 599.
    pub status: StatusCode,
    /// End of the body.
    pub framing: BodyFraming,
    /// The server keeps the connection open after the body.
    pub keeps_alive: bool,
    /// `Connection` names fields of this hop.
    pub names_hop_fields: bool,
    bytes: Bytes,
    fields: Vec<(ByteSpan, ByteSpan)>,
}

/// Start and end in the head.
type ByteSpan = (u16, u16);

impl ResponseHead {
    /// Returns why another node did not run the request, as it says. A function's own server could say
    /// anything.
    pub(crate) fn not_run_reason(&self) -> Option<Reason> {
        let mut fields = self.fields();
        let (_, value) = fields.find(|(name, _)| *name == not_run_header::NOT_RUN.as_str())?;
        not_run_header::parse_reason(value)
    }

    /// Iterates over names in lower case and values.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.fields.iter().map(|(name, value)| {
            // httparse has checked names as ASCII, so the default is never used.
            let name = std::str::from_utf8(&self.bytes[span_range(*name)]).unwrap_or_default();
            (name, &self.bytes[span_range(*value)])
        })
    }
}

/// Facts from the fields that concern framing and connection.
#[derive(Debug, Default)]
struct HopFields {
    length: Option<u64>,
    is_chunked: bool,
    closes: bool,
    keeps_alive: bool,
    names_others: bool,
}

/// Parser of one response's head.
#[derive(Debug, Default)]
pub struct HeadParser {
    /// Informational heads so far.
    informational: u32,
}

impl HeadParser {
    /// Takes the final head of a response from the beginning of the buffer; `None`: incomplete.
    /// Informational heads before it are dropped.
    ///
    /// # Errors
    /// If no later byte can make it valid.
    pub fn parse(
        &mut self,
        buffer: &mut BytesMut,
    ) -> Result<Option<ResponseHead>, InvalidResponse> {
        loop {
            match parse_one(buffer) {
                // No request asks for another protocol: what follows would not be HTTP.
                Ok(Some(head)) if head.status == StatusCode::SWITCHING_PROTOCOLS => {
                    return Err(InvalidResponse::SwitchingProtocols);
                }
                Ok(Some(head)) if head.status.is_informational() => self.note_informational()?,
                other => return other,
            }
        }
    }

    /// Bounds the work for a response that never comes.
    fn note_informational(&mut self) -> Result<(), InvalidResponse> {
        self.informational += 1;
        match self.informational <= MAX_INFORMATIONAL_HEADS {
            true => Ok(()),
            false => Err(InvalidResponse::Informational),
        }
    }
}

fn parse_one(buffer: &mut BytesMut) -> Result<Option<ResponseHead>, InvalidResponse> {
    // httparse skips blank lines in front, so a server could have it begin again for each byte.
    if buffer.first().is_some_and(|byte| *byte != b'H') {
        return Err(InvalidResponse::Head);
    }
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut []);
    let parsing = httparse::ParserConfig::default().parse_response_with_uninit_headers(
        &mut parsed,
        buffer,
        &mut headers,
    );
    let head_bytes = match parsing {
        Ok(httparse::Status::Complete(end)) if end <= MAX_HEAD_BYTES => end,
        Ok(httparse::Status::Partial) if buffer.len() < MAX_HEAD_BYTES => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => return Err(InvalidResponse::TooLarge),
        Err(_) => return Err(InvalidResponse::Head),
    };
    let code = parsed.code.unwrap_or_default();
    let status = StatusCode::from_u16(code).ok().filter(|_| code < 600);
    let status = status.ok_or(InvalidResponse::Head)?;
    let is_http11 = parsed.version == Some(1);
    let start = buffer.as_ptr() as usize;
    let span_of = |part: &[u8]| -> ByteSpan {
        // httparse's parts, empty ones too, are slices of the buffer.
        let offset = part.as_ptr() as usize - start;
        // Both fit: a blank line follows within the maximum, so they are below it.
        (offset as u16, (offset + part.len()) as u16)
    };
    let mut hop = HopFields::default();
    let mut fields = Vec::with_capacity(parsed.headers.len());
    for header in parsed.headers.iter() {
        hop.note_field(header.name, header.value)?;
        fields.push((span_of(header.name.as_bytes()), span_of(header.value)));
    }
    let framing = hop.framing(status, is_http11)?;
    if hop.is_chunked && hop.length.is_some() {
        fields.retain(|(name, _)| !buffer[span_range(*name)].eq_ignore_ascii_case(LENGTH_NAME));
    }
    let keeps_alive = framing != BodyFraming::UntilClose && hop.is_kept_alive(is_http11);
    for (name, _) in &fields {
        buffer[span_range(*name)].make_ascii_lowercase();
    }
    Ok(Some(ResponseHead {
        status,
        framing,
        keeps_alive,
        names_hop_fields: hop.names_others,
        bytes: buffer.split_to(head_bytes).freeze(),
        fields,
    }))
}

impl HopFields {
    fn note_field(&mut self, name: &str, value: &[u8]) -> Result<(), InvalidResponse> {
        // By length first: most names are then decided without a comparison.
        match name.len() {
            10 if name.eq_ignore_ascii_case("connection") => self.note_connection(value),
            14 if name.as_bytes().eq_ignore_ascii_case(LENGTH_NAME) => {
                let length = parse_length(value).ok_or(InvalidResponse::Framing)?;
                // Equal ones have one meaning (RFC 9112 section 6.3).
                if self
                    .length
                    .replace(length)
                    .is_some_and(|first| first != length)
                {
                    return Err(InvalidResponse::Framing);
                }
            }
            17 if name.eq_ignore_ascii_case("transfer-encoding") => {
                // Other codings, and any second one, have no meaning for this reader.
                if self.is_chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(InvalidResponse::Framing);
                }
                self.is_chunked = true;
            }
            _ => {}
        }
        Ok(())
    }

    fn note_connection(&mut self, value: &[u8]) {
        for token in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            match token {
                b"" => {}
                _ if token.eq_ignore_ascii_case(b"close") => self.closes = true,
                _ if token.eq_ignore_ascii_case(b"keep-alive") => self.keeps_alive = true,
                _ => self.names_others = true,
            }
        }
    }

    fn framing(&self, status: StatusCode, is_http11: bool) -> Result<BodyFraming, InvalidResponse> {
        if self.is_chunked && !is_http11 {
            return Err(InvalidResponse::Framing);
        }
        let is_bodiless = status.is_informational()
            || matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        Ok(match (is_bodiless, self.is_chunked, self.length) {
            (true, _, _) => BodyFraming::Length(0),
            (false, true, _) => BodyFraming::Chunked,
            (false, false, Some(length)) => BodyFraming::Length(length),
            (false, false, None) => BodyFraming::UntilClose,
        })
    }

    fn is_kept_alive(&self, is_http11: bool) -> bool {
        // Chunks win over a length, but the server may mean the length (RFC 9112 section 6.3).
        let is_ambiguous = self.is_chunked && self.length.is_some();
        !self.closes && !is_ambiguous && (is_http11 || self.keeps_alive)
    }
}

fn span_range((start, end): ByteSpan) -> Range<usize> {
    usize::from(start)..usize::from(end)
}

/// Parses a length, or a list of equal ones (RFC 9110 section 8.6).
fn parse_length(value: &[u8]) -> Option<u64> {
    let mut lengths = value.split(|byte| *byte == b',').map(parse_digits);
    let first = lengths.next()??;
    lengths.all(|other| other == Some(first)).then_some(first)
}

fn parse_digits(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let is_digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value)
        .ok()
        .filter(|_| is_digits)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> (Result<Option<ResponseHead>, InvalidResponse>, String) {
        let mut buffer = BytesMut::from(text);
        let parsed = HeadParser::default().parse(&mut buffer);
        (parsed, String::from_utf8(buffer.to_vec()).unwrap())
    }

    fn facts(text: &str) -> Result<(u16, BodyFraming, bool), InvalidResponse> {
        let (parsed, _) = parse(text);
        parsed.map(|head| {
            let head = head.expect("a complete head");
            (head.status.as_u16(), head.framing, head.keeps_alive)
        })
    }

    #[test]
    fn a_head_is_taken_and_the_body_left() {
        let (parsed, rest) =
            parse("HTTP/1.1 201 Made\r\nX-A: 1\r\nContent-Length: 3\r\n\r\nabcHTTP");
        let head = parsed.unwrap().unwrap();
        let fields: Vec<_> = head.fields().collect();
        assert_eq!(fields, [("x-a", &b"1"[..]), ("content-length", b"3")]);
        assert_eq!(rest, "abcHTTP");
        assert!(head.keeps_alive && !head.names_hop_fields);
    }

    #[test]
    fn framing_and_connection_follow_the_rfc() {
        use BodyFraming::{Chunked, Length, UntilClose};
        let table = [
            ("1.1 200 OK\r\ncontent-length: 3", (200, Length(3), true)),
            (
                "1.1 200 OK\r\ntransfer-encoding: Chunked",
                (200, Chunked, true),
            ),
            ("1.1 200 OK", (200, UntilClose, false)),
            ("1.0 200 OK\r\ncontent-length: 3", (200, Length(3), false)),
            (
                "1.0 200 OK\r\ncontent-length: 3\r\nconnection: Keep-Alive",
                (200, Length(3), true),
            ),
            (
                "1.1 200 OK\r\ncontent-length: 3\r\nconnection: x, close",
                (200, Length(3), false),
            ),
            (
                "1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 3",
                (200, Length(3), true),
            ),
            ("1.1 200 OK\r\ncontent-length: 3, 3", (200, Length(3), true)),
            (
                "1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked",
                (200, Chunked, false),
            ),
            ("1.1 204 None\r\ncontent-length: 3", (204, Length(0), true)),
            (
                "1.1 100 Go on\r\n\r\nHTTP/1.1 304 Same\r\nx: 1",
                (304, Length(0), true),
            ),
        ];
        for (text, wanted) in table {
            assert_eq!(facts(&format!("HTTP/{text}\r\n\r\n")), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn responses_with_two_meanings_are_refused() {
        for (text, error) in [
            ("1.1 101 Switching", InvalidResponse::SwitchingProtocols),
            (
                "1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4",
                InvalidResponse::Framing,
            ),
            ("1.1 200 OK\r\ncontent-length: +3", InvalidResponse::Framing),
            (
                "1.1 200 OK\r\ncontent-length: 3, 4",
                InvalidResponse::Framing,
            ),
            (
                "1.1 200 OK\r\ntransfer-encoding: gzip, chunked",
                InvalidResponse::Framing,
            ),
            (
                "1.0 200 OK\r\ntransfer-encoding: chunked",
                InvalidResponse::Framing,
            ),
            ("2.0 200 OK", InvalidResponse::Head),
            ("1.1 600 OK", InvalidResponse::Head),
            ("1.1 200 OK\r\nx : 1", InvalidResponse::Head),
        ] {
            assert_eq!(facts(&format!("HTTP/{text}\r\n\r\n")), Err(error), "{text}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nx: {}", "a".repeat(MAX_HEAD_BYTES));
        assert_eq!(parse(&long).0.unwrap_err(), InvalidResponse::TooLarge);
        let many = "x: 1\r\n".repeat(MAX_HEADERS + 1);
        assert_eq!(
            facts(&format!("HTTP/1.1 200 OK\r\n{many}\r\n")),
            Err(InvalidResponse::TooLarge)
        );
    }

    #[test]
    fn blank_lines_in_front_are_refused_at_once() {
        for text in ["\r", "\n\n", "\r\nHTTP/1.1 200 OK\r\n\r\n"] {
            assert_eq!(parse(text).0.unwrap_err(), InvalidResponse::Head);
        }
    }

    #[test]
    fn informational_heads_have_a_limit() {
        let text = |count| "HTTP/1.1 103 Early\r\n\r\n".repeat(count) + "HTTP/1.1 204 None\r\n\r\n";
        assert_eq!(facts(&text(100)).unwrap().0, 204);
        assert_eq!(facts(&text(101)), Err(InvalidResponse::Informational));
    }

    #[test]
    fn chunks_hide_a_length() {
        let head =
            parse("HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n");
        let head = head.0.unwrap().unwrap();
        assert!(head.fields().all(|(name, _)| name != "content-length"));
    }

    proptest! {
        #[test]
        fn a_head_in_pieces_is_the_same(cut in 1usize..60) {
            let text = "HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 12\r\n\r\nbody";
            let mut buffer = BytesMut::from(&text[..cut.min(text.len())]);
            let mut parser = HeadParser::default();
            let first = parser.parse(&mut buffer).unwrap();
            if first.is_none() {
                buffer.extend_from_slice(&text.as_bytes()[cut.min(text.len())..]);
                prop_assert_eq!(parser.parse(&mut buffer).unwrap().unwrap().framing, BodyFraming::Length(12));
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            let _ = HeadParser::default().parse(&mut buffer);
            prop_assert!(buffer.len() <= bytes.len());
        }
    }
}
