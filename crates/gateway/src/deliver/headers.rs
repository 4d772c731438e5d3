//! What the gateway changes in a request's and a response's head, in place.
//!
//! `Host` goes to the function as the caller sent it (OpenFaaS's proxy does the same for virtual hosting to work), and as
//! `X-Forwarded-Host` when that is absent. `traceparent` and everything else passes untouched.

use std::time::{Duration, Instant, SystemTime};

use http::header::{ACCEPT, CONTENT_TYPE, EXPECT, HOST, HeaderName, HeaderValue, UPGRADE};
use http::{HeaderMap, Request, Version};
use nearpath_types::{duration, policy};
use nearpath_wire::hop;
use uuid::Uuid;

use crate::path::Call;

/// The request's identity, kept or made.
pub(crate) const X_CALL_ID: HeaderName = HeaderName::from_static("x-call-id");
/// When the gateway got it, in Unix nanoseconds.
pub(crate) const X_START_TIME: HeaderName = HeaderName::from_static("x-start-time");
/// Which gateway.
pub(crate) const X_SERVED_BY: HeaderName = HeaderName::from_static("x-served-by");
/// How long it took, in decimal seconds.
pub(crate) const X_DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");
/// The whole request's limit.
pub(crate) const X_TIMEOUT: HeaderName = HeaderName::from_static("x-timeout");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A remaining deadline this near to the policy's own is told as the policy's: no text has to be made.
const NEAR: Duration = Duration::from_millis(5);

/// What the head of a request tells about how to treat it.
#[derive(Debug)]
pub struct Asked {
    /// `X-Call-Id`, kept or made.
    pub call_id: HeaderValue,
    /// `X-Start-Time`.
    pub start_time: HeaderValue,
    /// Errors as JSON.
    pub json: bool,
    /// An event stream is welcome, or the connection shall be upgraded: no deadline of ours is told.
    pub stream: bool,
    /// The connection shall be upgraded.
    pub upgrade: bool,
    /// To be sent over HTTP/2.
    pub grpc: bool,
    /// It was `HEAD`.
    pub head: bool,
}

impl Asked {
    /// Reads a request's head.
    pub fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let accept = headers.get(ACCEPT).map_or(&[][..], HeaderValue::as_bytes);
        let upgrade = wants_upgrade(request);
        Self {
            call_id: headers.get(X_CALL_ID).cloned().unwrap_or_else(new_call_id),
            start_time: start_time(),
            json: contains(accept, b"application/json"),
            stream: upgrade || is_stream(accept),
            upgrade,
            grpc: request.version() == Version::HTTP_2
                && headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")),
            head: request.method() == http::Method::HEAD,
        }
    }
}

/// Whether a content type, or a list of acceptable ones, names an endless stream.
pub(crate) fn is_stream(kinds: &[u8]) -> bool {
    contains(kinds, b"text/event-stream") || contains(kinds, b"application/x-ndjson")
}

/// An HTTP/1.1 upgrade, but never to h2c: that would hide later requests from the gateway (RFC 9113 dropped it).
fn wants_upgrade<B>(request: &Request<B>) -> bool {
    let protocol = request.headers().get(UPGRADE).map(HeaderValue::as_bytes);
    request.version() == Version::HTTP_11
        && protocol.is_some_and(|protocol| !contains(protocol, b"h2c") && !contains(protocol, b"h2"))
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.len() >= word.len() && text.windows(word.len()).any(|part| part.eq_ignore_ascii_case(word))
}

fn new_call_id() -> HeaderValue {
    let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
    let text = Uuid::new_v4().hyphenated().encode_lower(&mut text);
    HeaderValue::from_str(text).expect("a UUID is ASCII")
}

fn start_time() -> HeaderValue {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let mut text = Digits::default();
    text.push(nanos, 1);
    text.value()
}

/// Decimal seconds to the microsecond.
fn seconds(time: Duration) -> HeaderValue {
    let mut text = Digits::default();
    text.push(u64::from(time.subsec_micros()), 6);
    text.byte(b'.');
    text.push(time.as_secs(), 1);
    text.value()
}

/// A short number as text, written from its end. `std::fmt` would take several times as long, twice a request.
#[derive(Default)]
struct Digits {
    bytes: [u8; 32],
    used: usize,
}

impl Digits {
    fn byte(&mut self, byte: u8) {
        self.used += 1;
        let at = self.bytes.len() - self.used;
        self.bytes[at] = byte;
    }

    fn push(&mut self, mut number: u64, at_least: usize) {
        let mut written = 0;
        while number > 0 || written < at_least {
            self.byte(b'0' + (number % 10) as u8);
            number /= 10;
            written += 1;
        }
    }

    fn value(&self) -> HeaderValue {
        let text = &self.bytes[self.bytes.len() - self.used..];
        HeaderValue::from_bytes(text).expect("digits and a dot are ASCII")
    }
}

/// Makes a request's head fit for the function.
pub(crate) fn to_function(headers: &mut HeaderMap, call: &Call, authority: Option<HeaderValue>) {
    hop::strip(headers, call.asked.upgrade);
    headers.remove(EXPECT); // hyper answers it when the body is first asked for
    let peer = &call.peer;
    let host = headers.get(HOST).cloned().or(authority);
    if !call.asked.grpc && !headers.contains_key(HOST) {
        headers.insert(HOST, host.clone().unwrap_or_else(|| call.function.host.clone()));
    }
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers.entry(X_FORWARDED_FOR).or_insert_with(|| peer.forwarded_for.clone());
    headers.entry(X_FORWARDED_PROTO).or_insert_with(|| peer.proto.clone());
    headers.insert(X_CALL_ID, call.asked.call_id.clone());
    headers.insert(X_START_TIME, call.asked.start_time.clone());
    tell_deadline(headers, call);
}

fn tell_deadline(headers: &mut HeaderMap, call: &Call) {
    let own = call.clock.total_setting() != policy::TOTAL_TIMEOUT;
    if call.asked.stream && !own {
        headers.remove(X_TIMEOUT);
        return;
    }
    let left = call.clock.deadline().saturating_duration_since(call.admitted);
    let value = match !own && left + NEAR >= call.route.policy.total_timeout {
        true => call.route.total.clone(),
        false => HeaderValue::from_str(&duration::format(whole_millis(left))).expect("a duration is ASCII"),
    };
    headers.insert(X_TIMEOUT, value);
}

fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Makes a response's head fit for the caller.
pub(crate) fn to_caller(headers: &mut HeaderMap, call: &Call, upgraded: bool, now: Instant) {
    hop::strip(headers, upgraded);
    identify(headers, &call.asked, &call.lane.served_by);
    let took = now.saturating_duration_since(call.record.started());
    headers.entry(X_DURATION_SECONDS).or_insert_with(|| seconds(took));
}

/// Says which request and which gateway it was.
pub(crate) fn identify(headers: &mut HeaderMap, asked: &Asked, served_by: &HeaderValue) {
    headers.insert(X_CALL_ID, asked.call_id.clone());
    headers.insert(X_START_TIME, asked.start_time.clone());
    headers.insert(X_SERVED_BY, served_by.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_are_written_as_std_does(secs in any::<u64>(), micros in 0u32..1_000_000) {
            let time = Duration::new(secs, micros * 1_000);
            prop_assert_eq!(seconds(time), format!("{secs}.{micros:06}"));
        }
    }

    #[test]
    fn an_upgrade_to_http_2_is_none() {
        let asks =
            |protocol: &str| Asked::of(&Request::builder().header("upgrade", protocol).body(()).unwrap()).upgrade;
        assert!(asks("websocket") && !asks("h2c") && !asks("websocket, h2c"));
    }
}
