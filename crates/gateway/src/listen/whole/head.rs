//! Reads a request that is plain and there as a whole; knows neither socket nor task.
//!
//! Plain is: HTTP/1.1, a usual method, a path in origin form under `/function/`, one `Host`, a body of announced length or
//! none, and no header that asks more of this hop than to keep or close the connection.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Uri};

/// Headers of a plain request.
const HEADERS: usize = 32;
/// Where functions are.
const FUNCTIONS: &str = "/function/";

/// What a buffer begins with.
#[derive(Debug)]
pub enum Seen {
    /// A plain request, taken out of the buffer.
    Whole(Whole),
    /// A part of a head, plain so far.
    Part,
    /// Anything else, left where it is.
    Other,
}

/// A plain request.
#[derive(Debug)]
pub struct Whole {
    /// The request. It has no `Connection` header.
    pub request: Request<Bytes>,
    /// Its sender wants the connection closed after the answer.
    pub close: bool,
    /// As it came.
    pub bytes: Bytes,
}

/// Looks at what has come.
pub fn read(buffer: &mut BytesMut) -> Seen {
    let mut spans = [const { (0..0, 0..0) }; HEADERS];
    let plan = match plan(buffer, &mut spans) {
        Some(Some(plan)) => plan,
        Some(None) => return Seen::Part,
        None => return Seen::Other,
    };
    let bytes = buffer.split_to(plan.body.end).freeze();
    match request(&bytes, &plan, &spans[..plan.headers]) {
        Some(request) => Seen::Whole(Whole { request, close: plan.close, bytes }),
        None => {
            let rest = buffer.split();
            buffer.extend_from_slice(&bytes);
            buffer.unsplit(rest);
            Seen::Other
        }
    }
}

/// Where a header's name and value are.
type Span = (Range<usize>, Range<usize>);

/// Where everything is.
struct Plan {
    method: Method,
    path: Range<usize>,
    headers: usize,
    body: Range<usize>,
    close: bool,
}

/// `None`: not plain; `Some(None)`: plain so far, and not complete.
fn plan(buffer: &[u8], spans: &mut [Span; HEADERS]) -> Option<Option<Plan>> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let end = match parsed.parse_with_uninit_headers(buffer, &mut headers).ok()? {
        httparse::Status::Complete(end) => end,
        httparse::Status::Partial => return Some(None),
    };
    let path = parsed.path.filter(|path| path.starts_with(FUNCTIONS))?;
    let method = method(parsed.method?).filter(|_| parsed.version == Some(1))?;
    let within = |part: &[u8]| {
        let start = part.as_ptr() as usize - buffer.as_ptr() as usize;
        start..start + part.len()
    };
    let (mut judged, mut kept) = (Judged::default(), 0);
    for header in parsed.headers.iter() {
        if judged.keeps(header.name, header.value)? {
            spans[kept] = (within(header.name.as_bytes()), within(header.value));
            kept += 1;
        }
    }
    let length = judged.length.unwrap_or(0);
    let body = end..end.checked_add(length)?;
    let whole = judged.hosts == 1 && body.end <= buffer.len();
    whole.then(|| Some(Plan { method, path: within(path.as_bytes()), headers: kept, body, close: judged.close }))
}

/// `HEAD` is not among them: its answer is framed otherwise.
fn method(name: &str) -> Option<Method> {
    Some(match name {
        "GET" => Method::GET,
        "POST" => Method::POST,
        "PUT" => Method::PUT,
        "DELETE" => Method::DELETE,
        "PATCH" => Method::PATCH,
        _ => return None,
    })
}

/// What the headers say about this hop.
#[derive(Default)]
struct Judged {
    hosts: u32,
    length: Option<usize>,
    close: bool,
}

impl Judged {
    /// Whether the header is part of the request; `None`: the request is not plain.
    fn keeps(&mut self, name: &str, value: &[u8]) -> Option<bool> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        match name.len() {
            4 if is("host") => self.hosts += 1,
            10 if is("connection") => {
                let closes = value.eq_ignore_ascii_case(b"close");
                self.close |= closes;
                return (closes || value.eq_ignore_ascii_case(b"keep-alive")).then_some(false);
            }
            14 if is("content-length") => {
                let first = self.length.replace(length(value)?).is_none();
                return first.then_some(true);
            }
            2 if is("te") => return None,
            6 if is("expect") => return None,
            7 if is("upgrade") || is("trailer") => return None,
            10 if is("keep-alive") => return None,
            16 if is("proxy-connection") => return None,
            17 if is("transfer-encoding") => return None,
            18 if is("proxy-authenticate") => return None,
            19 if is("proxy-authorization") => return None,
            _ => {}
        }
        Some(true)
    }
}

/// Digits and nothing else (RFC 9110 section 8.6).
fn length(value: &[u8]) -> Option<usize> {
    let digits = std::str::from_utf8(value).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()))?;
    digits.parse().ok()
}

fn request(bytes: &Bytes, plan: &Plan, spans: &[Span]) -> Option<Request<Bytes>> {
    let mut request = Request::new(bytes.slice(plan.body.clone()));
    *request.method_mut() = plan.method.clone();
    *request.uri_mut() = Uri::from_maybe_shared(bytes.slice(plan.path.clone())).ok()?;
    *request.headers_mut() = headers(bytes, spans)?;
    Some(request)
}

/// With room for what the gateway adds.
fn headers(bytes: &Bytes, spans: &[Span]) -> Option<HeaderMap> {
    let mut headers = HeaderMap::with_capacity(spans.len() + 8);
    for (name, value) in spans {
        let name = HeaderName::from_bytes(&bytes[name.clone()]).ok()?;
        headers.append(name, HeaderValue::from_maybe_shared(bytes.slice(value.clone())).ok()?);
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn seen(text: &str) -> (Seen, BytesMut) {
        let mut buffer = BytesMut::from(text);
        (read(&mut buffer), buffer)
    }

    #[test]
    fn a_plain_request_is_taken_and_the_next_is_left() {
        let (seen, rest) =
            seen("POST /function/echo/a?b HTTP/1.1\r\nHost: h\r\nX-A: 1\r\ncontent-length: 3\r\n\r\nabcGET");
        let Seen::Whole(Whole { request, close, .. }) = seen else { panic!("{seen:?}") };
        assert_eq!((request.method(), request.uri().to_string().as_str()), (&Method::POST, "/function/echo/a?b"));
        assert_eq!(
            (request.body().as_ref(), request.headers()["x-a"].as_bytes(), close),
            (&b"abc"[..], &b"1"[..], false)
        );
        assert_eq!(&rest[..], b"GET");
    }

    #[test]
    fn the_connections_own_header_is_not_the_functions() {
        for (value, closes) in [("close", true), ("Close", true), ("keep-alive", false), ("Keep-Alive", false)] {
            let (seen, _) = seen(&format!("GET /function/a HTTP/1.1\r\nHost: h\r\nConnection: {value}\r\n\r\n"));
            let Seen::Whole(Whole { request, close, .. }) = seen else { panic!("{value}") };
            assert_eq!((close, request.headers().len()), (closes, 1));
        }
    }

    #[test]
    fn half_a_head_is_waited_for() {
        let whole = "GET /function/a HTTP/1.1\r\nHost: h\r\n\r\n";
        for end in 0..whole.len() {
            assert!(matches!(seen(&whole[..end]).0, Seen::Part), "{end}");
        }
    }

    #[test]
    fn whatever_is_not_plain_is_left_alone() {
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
            let (seen, left) = seen(text);
            assert!(matches!(seen, Seen::Other) && left == text.as_bytes(), "{text:?}: {seen:?}");
        }
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(text in "(GET|POST) /function/[a-z%]{1,4}(\\?[ -~]{0,4})? HTTP/1.1\r\nHost: h\r\n([a-z-]{1,9}:[ -~é]{0,9}\r\n){0,3}(content-length: [0-9]\r\n)?\r\n[a-z]{0,12}") {
            let mut buffer = BytesMut::from(text.as_str());
            let seen = read(&mut buffer);
            let taken = match &seen { Seen::Whole(whole) => whole.bytes.clone(), _ => Bytes::new() };
            prop_assert_eq!([&taken[..], &buffer].concat(), text.as_bytes());
        }
    }
}
