//! Reads a request that is plain and there as a whole; knows neither socket nor task.
//!
//! Plain is: HTTP/1.1, a usual method, a path in origin form under `/function/`, one `Host`, a body of announced length or
//! none, and no header that asks more of this hop than to keep or close the connection.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Uri};

use crate::request::is_stream;

/// Headers of a plain request.
const HEADERS: usize = 32;
/// Where functions are.
const FUNCTIONS: &str = "/function/";

/// What a buffer begins with.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "one a request, on the stack: an allocation would cost more")]
pub enum Seen {
    /// A plain request, taken out of the buffer.
    Whole(Whole),
    /// A part of a head, plain so far.
    Part,
    /// Anything else, left where it is.
    Other,
}

/// A plain request: what came, and where its parts are.
#[derive(Debug)]
pub struct Whole {
    /// As it came, but for the names of its headers, which are in lower case.
    pub bytes: Bytes,
    plan: Plan,
}

/// What a request's head says.
#[derive(Debug)]
struct Plan {
    method: Method,
    target: Span,
    spans: [(Span, Span); HEADERS],
    headers: usize,
    /// Where the body begins.
    head: usize,
    judged: Judged,
}

/// Where something is: start and end.
type Span = (u16, u16);

impl Whole {
    /// `GET`, `POST`, `PUT`, `DELETE` or `PATCH`.
    pub fn method(&self) -> &Method {
        &self.plan.method
    }

    /// Its sender wants the connection closed after the answer.
    pub fn closes(&self) -> bool {
        self.plan.judged.closes
    }

    /// It asks something of the gateway itself, by a header: a limit of its own, to be told the path, an endless answer.
    pub fn asks(&self) -> bool {
        self.plan.judged.asks
    }

    /// Path and query.
    pub fn target(&self) -> &str {
        self.text(self.plan.target)
    }

    /// The path alone.
    pub fn path(&self) -> &str {
        let target = self.target();
        target.split_once('?').map_or(target, |(path, _)| path)
    }

    /// Names in lower case, and values; without `Connection`.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.headers().iter().map(|(name, value)| (self.text(*name), &self.bytes[range(*value)]))
    }

    /// The body.
    pub fn body(&self) -> Bytes {
        self.bytes.slice(self.plan.head..)
    }

    /// The same as a request like all others.
    pub fn request(&self) -> Option<Request<Bytes>> {
        let mut request = Request::new(self.body());
        *request.method_mut() = self.plan.method.clone();
        *request.uri_mut() = Uri::from_maybe_shared(self.bytes.slice(range(self.plan.target))).ok()?;
        *request.headers_mut() = self.map()?;
        Some(request)
    }

    /// With room for what the gateway adds.
    fn map(&self) -> Option<HeaderMap> {
        let mut headers = HeaderMap::with_capacity(self.plan.headers + 8);
        for (name, value) in self.headers() {
            let name = HeaderName::from_bytes(&self.bytes[range(*name)]).ok()?;
            headers.append(name, HeaderValue::from_maybe_shared(self.bytes.slice(range(*value))).ok()?);
        }
        Some(headers)
    }

    fn headers(&self) -> &[(Span, Span)] {
        &self.plan.spans[..self.plan.headers]
    }

    /// What is ASCII, as it was read.
    fn text(&self, span: Span) -> &str {
        std::str::from_utf8(&self.bytes[range(span)]).unwrap_or_default()
    }
}

fn range((start, end): Span) -> Range<usize> {
    usize::from(start)..usize::from(end)
}

/// Looks at what has come.
pub fn read(buffer: &mut BytesMut) -> Seen {
    let plan = match plan(buffer) {
        Some(Some(plan)) => plan,
        Some(None) => return Seen::Part,
        None => return Seen::Other,
    };
    for (name, _) in &plan.spans[..plan.headers] {
        buffer[range(*name)].make_ascii_lowercase();
    }
    let length = plan.head + plan.judged.length.unwrap_or(0);
    Seen::Whole(Whole { bytes: buffer.split_to(length).freeze(), plan })
}

/// Where everything is. `None`: the request is not plain; `Some(None)`: plain so far, and not complete.
fn plan(buffer: &[u8]) -> Option<Option<Plan>> {
    let mut headers = [const { MaybeUninit::uninit() }; HEADERS];
    let mut parsed = httparse::Request::new(&mut []);
    let head = match parsed.parse_with_uninit_headers(buffer, &mut headers).ok()? {
        httparse::Status::Complete(end) => end,
        httparse::Status::Partial => return Some(None),
    };
    let target = parsed.path.filter(|target| is_plain(target))?;
    let method = method(parsed.method?).filter(|_| parsed.version == Some(1))?;
    let within = |part: &[u8]| -> Option<Span> {
        let start = part.as_ptr() as usize - buffer.as_ptr() as usize;
        Some((u16::try_from(start).ok()?, u16::try_from(start + part.len()).ok()?))
    };
    let (mut judged, mut spans, mut kept) = (Judged::default(), [((0, 0), (0, 0)); HEADERS], 0);
    for header in parsed.headers.iter() {
        if judged.keeps(header.name, header.value)? {
            spans[kept] = (within(header.name.as_bytes())?, within(header.value)?);
            kept += 1;
        }
    }
    let whole = judged.hosts == 1 && judged.length.unwrap_or(0) <= buffer.len() - head;
    let target = within(target.as_bytes())?;
    whole.then_some(Some(Plan { method, target, spans, headers: kept, head, judged }))
}

/// In origin form, for a function, and of characters that may stand in a path or query (RFC 3986).
fn is_plain(target: &str) -> bool {
    let stands = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?@!$&'()*+,;=%".contains(&byte);
    target.starts_with(FUNCTIONS) && target.bytes().all(stands)
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
#[derive(Debug, Default)]
struct Judged {
    hosts: u32,
    length: Option<usize>,
    closes: bool,
    asks: bool,
}

impl Judged {
    /// Whether the header is part of the request; `None`: the request is not plain.
    fn keeps(&mut self, name: &str, value: &[u8]) -> Option<bool> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        match name.len() {
            4 if is("host") => self.hosts += 1,
            10 if is("connection") => {
                let closes = value.eq_ignore_ascii_case(b"close");
                self.closes |= closes;
                return (closes || value.eq_ignore_ascii_case(b"keep-alive")).then_some(false);
            }
            14 if is("content-length") => {
                let first = self.length.replace(length(value)?).is_none();
                return first.then_some(true);
            }
            6 if is("accept") => self.asks |= !value.starts_with(b"*/*") && is_stream(value),
            9 if is("x-timeout") => self.asks = true,
            12 if is("grpc-timeout") => self.asks = true,
            12 if is("content-type") => self.asks |= value.starts_with(b"application/grpc"),
            15 if is("x-nearpath-path") => self.asks = true,
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
        let Seen::Whole(whole) = seen else { panic!("{seen:?}") };
        let (request, close) = (whole.request().unwrap(), whole.closes());
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
            let Seen::Whole(whole) = seen else { panic!("{value}") };
            assert_eq!((whole.closes(), whole.request().unwrap().headers().len()), (closes, 1));
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
            prop_assert!([&taken[..], &buffer].concat().eq_ignore_ascii_case(text.as_bytes()));
            if let Seen::Whole(whole) = seen {
                let request = whole.request().expect("it is plain");
                prop_assert_eq!(request.uri().to_string(), whole.target());
                prop_assert_eq!(request.headers().len(), whole.fields().count());
            }
        }
    }
}
