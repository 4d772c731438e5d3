//! Parser for complete plain requests, without sockets and tasks.
//!
//! A plain request has HTTP/1.1, a common method, a path in origin form under `/function/`, and one
//! `Host`. Another node's request names its function in a field, and has the function's own path. So has the
//! request on a connection to a virtual address. The body
//! of each has an announced length or is absent. No header asks more of this hop than to keep or close the
//! connection.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Uri};

use nearpath_types::platform_field::TOPIC_FIELD;

use super::hop_headers::{ByteSpan, HopHeaders, NodeFields};

/// Maximum number of header fields of a plain request. Larger heads take the pipeline.
const MAX_HEADERS: usize = 32;
/// Path prefix of all functions.
const FUNCTION_PREFIX: &str = "/function/";

/// Result of parsing the beginning of a buffer.
#[derive(Debug)]
pub enum ParseOutcome {
    /// A plain request, taken out of the buffer.
    Plain(PlainRequest),
    /// Incomplete head, plain so far.
    Incomplete,
    /// Any other request, left in the buffer.
    NotPlain,
}

/// Plain request: its bytes and the positions of its parts.
#[derive(Debug)]
pub struct PlainRequest {
    /// Received bytes; header names are converted to lower case.
    pub bytes: Bytes,
    /// Boxed: requests are moved, and most of this is unused room.
    layout: Box<RequestLayout>,
}

/// Positions of the parts of a request.
#[derive(Debug)]
struct RequestLayout {
    method: Method,
    target_span: ByteSpan,
    header_spans: [(ByteSpan, ByteSpan); MAX_HEADERS],
    header_count: usize,
    /// Length of the head, which is the offset of the body.
    head_bytes: usize,
    hop: HopHeaders,
    node: NodeFields,
}

/// Sender of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RequestSender {
    /// A client or an instance.
    Caller,
    /// An instance that has connected to the function's virtual address.
    NamedCaller,
    /// Another node.
    Node,
}

impl PlainRequest {
    /// `GET`, `POST`, `PUT`, `DELETE` or `PATCH`.
    pub fn method(&self) -> &Method {
        &self.layout.method
    }

    /// Returns whether the caller wants the connection closed after the response.
    pub fn closes_connection(&self) -> bool {
        self.layout.hop.closes_connection
    }

    /// Returns whether a header sets an option of the gateway: a time limit, an endless response.
    pub fn has_gateway_options(&self) -> bool {
        self.layout.hop.has_gateway_options
    }

    /// Returns whether the caller asks for the path report.
    pub fn wants_path(&self) -> bool {
        self.layout.hop.wants_path
    }

    /// Returns the name of the called function in the request of another node.
    pub fn called_function(&self) -> Option<&str> {
        str::from_utf8(self.bytes_at(self.layout.node.function?)).ok()
    }

    /// Returns the name of the calling function in the request of another node.
    pub fn calling_function(&self) -> Option<&[u8]> {
        Some(self.bytes_at(self.layout.node.caller?))
    }

    /// Returns the time limit that another node sets.
    pub(super) fn node_timeout(&self) -> Option<&[u8]> {
        Some(self.bytes_at(self.layout.node.timeout?))
    }

    /// Returns path and query.
    pub fn target(&self) -> &str {
        self.text_at(self.layout.target_span)
    }

    /// Returns the path without the query.
    pub fn path(&self) -> &str {
        let target = self.target();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// Iterates over names in lower case and values, without `Connection`. Names are ASCII.
    pub(super) fn raw_fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let part = |span| &self.bytes[span_range(span)];
        let spans = self.header_spans().iter();
        spans.map(move |(name, value)| (part(*name), part(*value)))
    }

    /// Iterates over names in lower case and values, without `Connection`.
    pub fn header_fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.header_spans()
            .iter()
            .map(|(name, value)| (self.text_at(*name), &self.bytes[span_range(*value)]))
    }

    /// Returns the number of header fields.
    pub(super) fn field_count(&self) -> usize {
        self.layout.header_count
    }

    /// Returns the length of the body in bytes.
    pub fn body_length(&self) -> u64 {
        (self.bytes.len() - self.layout.head_bytes) as u64
    }

    /// Returns the body.
    pub fn body(&self) -> Bytes {
        self.bytes.slice(self.layout.head_bytes..)
    }

    /// Converts the request for the pipeline.
    pub fn to_request(&self) -> Option<Request<Bytes>> {
        let mut request = Request::new(self.body());
        *request.method_mut() = self.layout.method.clone();
        *request.uri_mut() =
            Uri::from_maybe_shared(self.bytes.slice(span_range(self.layout.target_span))).ok()?;
        *request.headers_mut() = self.to_header_map()?;
        Some(request)
    }

    /// Builds a header map with room for the gateway's own fields.
    fn to_header_map(&self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::with_capacity(self.layout.header_count + 8);
        for (name, value) in self.header_spans() {
            let name = HeaderName::from_bytes(&self.bytes[span_range(*name)]).ok()?;
            headers.append(name, self.header_value(*value)?);
        }
        for (name, value) in self.layout.node.named() {
            headers.append(name, self.header_value(value)?);
        }
        Some(headers)
    }

    /// Returns a value that shares the read buffer.
    fn header_value(&self, value: ByteSpan) -> Option<HeaderValue> {
        HeaderValue::from_maybe_shared(self.bytes.slice(span_range(value))).ok()
    }

    fn header_spans(&self) -> &[(ByteSpan, ByteSpan)] {
        &self.layout.header_spans[..self.layout.header_count]
    }

    fn bytes_at(&self, span: ByteSpan) -> &[u8] {
        &self.bytes[span_range(span)]
    }

    /// Returns ASCII text of the request.
    fn text_at(&self, span: ByteSpan) -> &str {
        // Only spans that httparse has checked as ASCII get here, so the default is never used.
        std::str::from_utf8(&self.bytes[span_range(span)]).unwrap_or_default()
    }
}

fn span_range((start, end): ByteSpan) -> Range<usize> {
    usize::from(start)..usize::from(end)
}

/// Takes a caller's plain request from the beginning of the buffer.
pub fn take_plain_request(buffer: &mut BytesMut) -> ParseOutcome {
    take_request(buffer, RequestSender::Caller)
}

/// Takes a plain request on a connection to a function's virtual address from the beginning of the buffer.
pub fn take_named_request(buffer: &mut BytesMut) -> ParseOutcome {
    take_request(buffer, RequestSender::NamedCaller)
}

/// Takes another node's plain call of a function from the beginning of the buffer.
pub fn take_node_request(buffer: &mut BytesMut) -> ParseOutcome {
    take_request(buffer, RequestSender::Node)
}

fn take_request(buffer: &mut BytesMut, sender: RequestSender) -> ParseOutcome {
    let layout = match parse_layout(buffer, sender) {
        Some(Some(layout)) => layout,
        Some(None) => return ParseOutcome::Incomplete,
        None => return ParseOutcome::NotPlain,
    };
    for (name, _) in &layout.header_spans[..layout.header_count] {
        // In place, once: functions and `http` both expect names in lower case.
        buffer[span_range(*name)].make_ascii_lowercase();
    }
    let length = layout.head_bytes + layout.hop.content_length.unwrap_or(0);
    ParseOutcome::Plain(PlainRequest {
        bytes: buffer.split_to(length).freeze(),
        layout,
    })
}

/// Locates the parts of a request. `None`: not plain. `Some(None)`: plain so far, but incomplete.
fn parse_layout(buffer: &[u8], sender: RequestSender) -> Option<Option<Box<RequestLayout>>> {
    // Uninitialized, because clearing 32 headers for each request would cost more than parsing
    // most of them.
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let head = match parsed
        .parse_with_uninit_headers(buffer, &mut headers)
        .ok()?
    {
        httparse::Status::Complete(end) => end,
        httparse::Status::Partial => return Some(None),
    };
    let target = parsed
        .path
        .filter(|target| is_plain_target(target, sender))?;
    let method = plain_method(parsed.method?).filter(|_| parsed.version == Some(1))?;
    // httparse returns slices of the buffer. Offsets survive the split of the buffer below,
    // references would not.
    let span_of = |part: &[u8]| -> Option<ByteSpan> {
        let start = part.as_ptr() as usize - buffer.as_ptr() as usize;
        Some((
            u16::try_from(start).ok()?,
            u16::try_from(start + part.len()).ok()?,
        ))
    };
    let (mut hop, mut node) = (HopHeaders::default(), NodeFields::default());
    let (mut spans, mut header_count) = ([((0, 0), (0, 0)); MAX_HEADERS], 0);
    for header in parsed.headers.iter() {
        // Events have a permission of their own, and no response.
        if sender == RequestSender::Node && header.name.eq_ignore_ascii_case(TOPIC_FIELD) {
            return None;
        }
        if sender == RequestSender::Node
            && let Some(span) = node.span_mut(header.name)
        {
            // Two values are two meanings.
            if span.replace(span_of(header.value)?).is_some() {
                return None;
            }
            continue;
        }
        if hop.note_header(header.name, header.value)? {
            spans[header_count] = (span_of(header.name.as_bytes())?, span_of(header.value)?);
            header_count += 1;
        }
    }
    // Two hosts are two meanings, and a body that is still arriving is hyper's to stream.
    let is_complete = hop.host_count == 1 && hop.content_length.unwrap_or(0) <= buffer.len() - head;
    if sender == RequestSender::Node && node.function.is_none() {
        return None; // for a path between nodes
    }
    let target = span_of(target.as_bytes())?;
    let layout = || RequestLayout {
        method,
        target_span: target,
        header_spans: spans,
        header_count,
        head_bytes: head,
        hop,
        node,
    };
    is_complete.then(|| Some(Box::new(layout())))
}

/// Returns whether a target has origin form, is under `/function/` where the path names the function, and has only characters of
/// paths and queries (RFC 3986).
fn is_plain_target(target: &str, sender: RequestSender) -> bool {
    let prefix = match sender {
        RequestSender::Caller => FUNCTION_PREFIX,
        RequestSender::NamedCaller | RequestSender::Node => "/",
    };
    let is_allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?@!$&'()*+,;=%".contains(&byte);
    target.starts_with(prefix) && target.bytes().all(is_allowed)
}

/// Parses the methods of plain requests. Not `HEAD`, whose response has a length without a body.
fn plain_method(name: &str) -> Option<Method> {
    Some(match name {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "DELETE" => Method::DELETE,
        "PATCH" => Method::PATCH,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse_text(text: &str) -> (ParseOutcome, BytesMut) {
        let mut buffer = BytesMut::from(text);
        (take_plain_request(&mut buffer), buffer)
    }

    #[test]
    fn a_plain_request_is_taken_and_the_next_is_left() {
        let (outcome, rest) = parse_text(
            "POST /function/echo/a?b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\ncontent-length: 3\r\n\r\nabcGET",
        );
        let ParseOutcome::Plain(plain) = outcome else {
            panic!("{outcome:?}")
        };
        let (request, close) = (plain.to_request().unwrap(), plain.closes_connection());
        assert_eq!(
            (request.method(), request.uri().to_string().as_str()),
            (&Method::POST, "/function/echo/a?b")
        );
        assert_eq!(
            (
                request.body().as_ref(),
                request.headers()["x-a"].as_bytes(),
                close
            ),
            (&b"abc"[..], &b"1"[..], false)
        );
        assert_eq!(&rest[..], b"GET");
    }

    #[test]
    fn the_connection_header_is_not_passed_to_the_function() {
        for (value, closes) in [
            ("close", true),
            ("Close", true),
            ("keep-alive", false),
            ("Keep-Alive", false),
        ] {
            let (outcome, _) = parse_text(&format!(
                "GET /function/a HTTP/1.1\r\nHost: h\r\nConnection: {value}\r\n\r\n"
            ));
            let ParseOutcome::Plain(plain) = outcome else {
                panic!("{value}")
            };
            assert_eq!(
                (
                    plain.closes_connection(),
                    plain.to_request().unwrap().headers().len()
                ),
                (closes, 1)
            );
        }
    }

    #[test]
    fn an_incomplete_head_is_left_in_the_buffer() {
        let head = "GET /function/a HTTP/1.1\r\nHost: h\r\n\r\n";
        for end in 0..head.len() {
            assert!(
                matches!(parse_text(&head[..end]).0, ParseOutcome::Incomplete),
                "{end}"
            );
        }
    }

    #[test]
    fn a_request_that_is_not_plain_stays_in_the_buffer() {
        for text in [
            "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET http://h/function/a HTTP/1.1\r\nHost: h\r\n\r\n",
            "HEAD /function/a HTTP/1.1\r\nHost: h\r\n\r\n",
            "GET /function/a HTTP/1.0\r\nHost: h\r\n\r\n",
            "GET /function/a HTTP/1.1\r\n\r\n",
            "GET /function/a HTTP/1.1\r\nHost: h\r\nhost: i\r\n\r\n",
            "GET /function/a HTTP/1.1\r\nHost : h\r\n\r\n",
            "GET /function/a HTTP/1.1\r\nHost: h\r\n folded\r\n\r\n",
            "POST /function/a HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nab",
            "POST /function/a HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\na",
            "POST /function/a HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
            "POST /function/a HTTP/1.1\r\nHost: h\r\nContent-Length: 18446744073709551615\r\n\r\n",
            "POST /function/a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET /function/a HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
            "GET /function/a HTTP/1.1\r\nHost: h\r\nConnection: x-secret\r\n\r\n",
            "GET /function/a HTTP/1.1\r\nHost: h\r\nConnection: close\r\nConnection: x-secret\r\n\r\n",
            "POST /function/a HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n\r\n",
            "\u{16}\u{3}\u{1}",
        ] {
            let (outcome, left) = parse_text(text);
            assert!(
                matches!(outcome, ParseOutcome::NotPlain) && left == text.as_bytes(),
                "{text:?}: {outcome:?}"
            );
        }
    }

    /// Returns the bytes of another node's request with these further fields.
    fn node_request(function: &[u8], fields: &str) -> BytesMut {
        let (start, end) = (
            &b"GET /function/echo HTTP/1.1\r\nHost: b\r\n"[..],
            b"\r\n\r\n",
        );
        let parts = [
            start,
            fields.as_bytes(),
            b"X-Nearpath-Function: ",
            function,
            end,
        ];
        BytesMut::from(&parts.concat()[..])
    }

    #[test]
    fn a_nodes_request_names_its_function_in_a_field() {
        let outcome = take_node_request(&mut node_request(b"echo.shop", ""));
        let ParseOutcome::Plain(plain) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(plain.called_function(), Some("echo.shop"));
        assert_eq!(plain.field_count(), 1);
    }

    #[test]
    fn a_function_name_that_is_no_text_names_no_function() {
        let outcome = take_node_request(&mut node_request(b"echo\xff", ""));
        let ParseOutcome::Plain(plain) = outcome else {
            panic!("{outcome:?}")
        };
        assert_eq!(plain.called_function(), None);
        let request = plain.to_request().unwrap();
        let name = request.headers()["x-nearpath-function"].as_bytes();
        assert_eq!(name, b"echo\xff", "the pipeline refuses it");
    }

    #[test]
    fn a_nodes_request_beyond_the_limits_stays_in_the_buffer() {
        let with_fields =
            |count: usize| -> String { (0..count).map(|at| format!("X-F-{at}: 1\r\n")).collect() };
        let with_bytes = |count: usize| format!("X-Long: {}\r\n", "x".repeat(count));
        // `Host` and the function's name are two more fields.
        let within_limits = [with_fields(MAX_HEADERS - 2), with_bytes(60 << 10)];
        for fields in within_limits {
            let outcome = take_node_request(&mut node_request(b"echo", &fields));
            assert!(matches!(outcome, ParseOutcome::Plain(_)), "{outcome:?}");
        }
        let beyond = [with_fields(MAX_HEADERS - 1), with_bytes(64 << 10)];
        for fields in beyond {
            let mut buffer = node_request(b"echo", &fields);
            let sent = buffer.clone();
            let outcome = take_node_request(&mut buffer);
            assert!(matches!(outcome, ParseOutcome::NotPlain), "{outcome:?}");
            assert!(buffer == sent, "some bytes were taken");
        }
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(text in "(GET|POST) /function/[a-z%]{1,4}(\\?[ -~]{0,4})? HTTP/1.1\r\nHost: h\r\n([a-z-]{1,9}:[ -~é]{0,9}\r\n){0,3}(content-length: [0-9]\r\n)?\r\n[a-z]{0,12}") {
            let mut buffer = BytesMut::from(text.as_str());
            let outcome = take_plain_request(&mut buffer);
            let taken = match &outcome { ParseOutcome::Plain(plain) => plain.bytes.clone(), _ => Bytes::new() };
            prop_assert!([&taken[..], &buffer].concat().eq_ignore_ascii_case(text.as_bytes()));
            if let ParseOutcome::Plain(plain) = outcome {
                let request = plain.to_request().expect("it is plain");
                prop_assert_eq!(request.uri().to_string(), plain.target());
                prop_assert_eq!(request.headers().len(), plain.header_fields().count());
            }
        }
    }
}
