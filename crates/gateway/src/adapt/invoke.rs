//! One invocation for an adapter: the walk that every request takes, with a body that is there as a whole, and an answer that
//! is gathered as a whole, up to a limit.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HeaderValue};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use nearpath_types::Reason;

use crate::Zone;
use crate::call::Peer;
use crate::deliver::Content;
use crate::lane::Lane;
use crate::path;
use crate::record::Protocol;
use crate::route::Function;

/// What RFC 3986 lets stand in a segment of a path; everything else is percent-encoded.
const SEGMENT: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':').remove(b'@').remove(b',');
/// What may stand in one argument of a query.
const ARGUMENT: &AsciiSet = &SEGMENT.remove(b'=').remove(b'/').remove(b'?').remove(b';').remove(b'+');

/// A segment of a path, encoded.
pub(crate) fn segment(text: &str) -> String {
    utf8_percent_encode(text, SEGMENT).to_string()
}

/// An argument of a query, encoded.
pub(crate) fn argument(text: &str) -> String {
    utf8_percent_encode(text, ARGUMENT).to_string()
}

/// What an adapter asks of a function.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// Which one.
    pub function: Arc<Function>,
    /// How.
    pub method: Method,
    /// The function's own path and query, encoded; begins with `/` unless it is empty.
    pub path: String,
    /// Without the ones that the gateway makes.
    pub headers: HeaderMap,
    /// The payload.
    pub body: Bytes,
    /// As the completion record names it.
    pub protocol: &'static str,
}

/// What came of it.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    /// The function's or the platform's.
    pub status: u16,
    /// The answer's head.
    pub headers: HeaderMap,
    /// `None`: larger than the limit, or cut.
    pub body: Option<Bytes>,
}

/// Who is at the other end of an adapter.
pub(crate) fn peer(addr: IpAddr, proto: &'static str) -> Rc<Peer> {
    let addr = addr.to_canonical();
    let forwarded_for = HeaderValue::from_str(&addr.to_string()).expect("an address is ASCII");
    Rc::new(Peer { zone: Zone::Public, addr, forwarded_for, proto: HeaderValue::from_static(proto) })
}

/// Takes an invocation along the path, to its end.
pub(crate) async fn invoke(lane: &Rc<Lane>, peer: &Rc<Peer>, ask: Ask, limit: usize) -> Answer {
    let (request, function, rest) = request(ask);
    let answer = path::answer(path::begin_whole(lane, peer, request, function, rest)).await;
    let (head, content) = answer.into_parts();
    let body = gather(content, limit).await;
    Answer { status: head.status.as_u16(), headers: head.headers, body }
}

fn request(ask: Ask) -> (Request<Bytes>, Arc<Function>, usize) {
    let prefix = format!("/function/{}", ask.function.name);
    let rest = prefix.len();
    let mut request = Request::new(ask.body);
    *request.uri_mut() = format!("{prefix}{}", ask.path).try_into().expect("an encoded path is a path");
    *request.method_mut() = ask.method;
    *request.headers_mut() = ask.headers;
    if !request.body().is_empty() {
        let length = request.body().len();
        request.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    request.extensions_mut().insert(Protocol(ask.protocol));
    (request, ask.function, rest)
}

/// The whole body. Above the limit the rest is not asked for: the function's connection ends.
async fn gather(mut content: Content, limit: usize) -> Option<Bytes> {
    let mut first: Option<Bytes> = None;
    let mut more = BytesMut::new();
    while let Some(frame) = content.frame().await {
        let Ok(data) = frame.ok()?.into_data() else { continue };
        if first.as_ref().map_or(0, Bytes::len) + more.len() + data.len() > limit {
            content.cut(Reason::AnswerTooLarge);
            return None;
        }
        match &first {
            None => first = Some(data),
            Some(_) => more.extend_from_slice(&data),
        }
    }
    let first = first.unwrap_or_default();
    if more.is_empty() {
        return Some(first);
    }
    Some([&first[..], &more].concat().into())
}
