//! Which responses are kept and given again, by the rules of a *shared* cache (RFC 9111), which the crate `http-cache-semantics` knows. Pure: time is an
//! argument.
//!
//! A cache belongs to one function, or one chain; but a function serves many people, so what is meant for one of them (`private`, answers to requests
//! with `Authorization` or `Cookie`, `Set-Cookie`) stays out, unless the server says `public` or `s-maxage`. Freshness is never guessed: where the server
//! names no time, each use is checked with the server (`ETag`, `Last-Modified`), and without these nothing is kept. Requests that bring conditions or
//! ranges of their own pass by.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, COOKIE, ETAG, EXPECT, HOST, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, SET_COOKIE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, response};
use http_cache_semantics::{AfterResponse, BeforeRequest, CacheOptions, CachePolicy};

use super::hop;
use crate::lru::{Larder, Ticket};

#[cfg(test)]
mod tests;

/// Headers by which a request is about more than its resource: the cache stays out of it.
const OWN: [HeaderName; 8] =
    [RANGE, IF_RANGE, IF_MATCH, IF_NONE_MATCH, IF_MODIFIED_SINCE, IF_UNMODIFIED_SINCE, EXPECT, UPGRADE];
/// Headers that say whose request it is.
const PERSONAL: [HeaderName; 2] = [AUTHORIZATION, COOKIE];
/// What belongs to the body that is kept, whatever a check says (RFC 9111 section 3.2).
const OF_BODY: [&str; 5] = ["content-length", "content-encoding", "content-type", "content-range", "transfer-encoding"];
/// Responses that are kept of one resource, by what they vary with.
const VARIANTS: usize = 4;
/// The highest age that has a meaning (RFC 9111 section 1.2.2).
const OLDEST: u64 = 1 << 31;

const SHARED: CacheOptions = CacheOptions {
    shared: true,
    cache_heuristic: 0.0,
    immutable_min_time_to_live: Duration::ZERO,
    ignore_cargo_cult: false,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Cache(Larder<Vec<Variant>>);

/// One response as it is kept.
#[derive(Debug, Clone)]
struct Variant {
    policy: CachePolicy,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// What is to be done with a request.
#[derive(Debug)]
pub(super) enum Look {
    /// It is none of the cache's business.
    Pass,
    /// This is the answer.
    Fresh(Response<Bytes>),
    /// The server is asked, and its answer shown to the cache.
    Ask(Box<Asked>),
}

/// A request whose answer may be kept.
#[derive(Debug)]
pub(super) struct Asked {
    ticket: Ticket,
    /// As the client sent it.
    request: Request<()>,
    at: SystemTime,
    /// What the server is asked to confirm.
    held: Option<Variant>,
}

/// What a response means for the cache.
#[derive(Debug)]
pub(super) enum Heard {
    /// It goes on as it is.
    Other,
    /// What is kept is still good: this is the answer.
    Same(Response<Bytes>),
    /// It says that something is still good which nobody has: the server is to be asked again, without conditions.
    Unasked,
    /// It goes on, and is kept once its body has come.
    Keep(Box<Keeping>),
}

/// A response whose body is on its way.
#[derive(Debug)]
pub(super) struct Keeping {
    ticket: Ticket,
    request: Request<()>,
    variant: Variant,
    /// Longest body that is kept.
    pub(super) longest: usize,
}

impl Asked {
    /// What has the server say whether what is kept is still good.
    pub(super) fn conditions(&self) -> Vec<(HeaderName, HeaderValue)> {
        let stored = |name| self.held.iter().find_map(|held| held.headers.get(&name)).cloned();
        match (stored(ETAG), stored(LAST_MODIFIED)) {
            (Some(tag), _) => vec![(IF_NONE_MATCH, tag)],
            (None, Some(date)) => vec![(IF_MODIFIED_SINCE, date)],
            (None, None) => Vec::new(),
        }
    }
}

impl Cache {
    /// An empty one for so many bytes.
    pub(super) fn new(bound: u64) -> Self {
        Self(Larder::new(usize::try_from(bound).unwrap_or(usize::MAX)))
    }

    /// A request, without a body or with one.
    pub(super) fn look(&mut self, request: &Parts, empty: bool, now: SystemTime) -> Look {
        let Some(key) = key(request) else { return Look::Pass };
        if !request.method.is_safe() {
            self.0.drop_key(&key);
            return Look::Pass;
        }
        let own = OWN.iter().any(|name| request.headers.contains_key(name));
        if !empty || own || !(request.method == Method::GET || request.method == Method::HEAD) {
            return Look::Pass;
        }
        let as_get = plain(request);
        let found = self.0.get(&key).and_then(|variants| find(variants, &as_get, now));
        match found {
            Some((variant, true)) => Look::Fresh(variant.given(now, &request.method)),
            _ if request.method == Method::HEAD => Look::Pass,
            found => {
                let held = found.map(|(variant, _)| variant.clone());
                Look::Ask(Box::new(Asked { ticket: self.0.ask(&key), request: as_get, at: now, held }))
            }
        }
    }

    /// The server has answered a request that may have changed something: what was read meanwhile may be older than that.
    pub(super) fn wrote(&mut self, request: &Parts) {
        if let Some(key) = key(request) {
            self.0.drop_key(&key);
        }
    }

    /// The server has answered what was asked.
    pub(super) fn heard(&mut self, asked: Asked, response: &response::Parts, now: SystemTime) -> Heard {
        let Asked { ticket, request, at, held } = asked;
        let longest = self.0.longest();
        if response.status == StatusCode::NOT_MODIFIED
            && let Some(held) = held
        {
            return match confirmed(&held, &request, response, at) {
                Some(variant) => {
                    let given = variant.given(now, &Method::GET);
                    self.put(Keeping { ticket, request, variant, longest }, now);
                    Heard::Same(given)
                }
                None => Heard::Unasked,
            };
        }
        match variant(&request, response.status, response.headers.clone(), at) {
            Some(variant) => Heard::Keep(Box::new(Keeping { ticket, request, variant, longest })),
            None => Heard::Other,
        }
    }

    /// The whole body has come.
    pub(super) fn keep(&mut self, mut keeping: Keeping, body: Bytes, now: SystemTime) {
        let length = keeping.variant.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: usize| length != body.len()) {
            return;
        }
        keeping.variant.body = body;
        self.put(keeping, now);
    }

    fn put(&mut self, keeping: Keeping, now: SystemTime) {
        let Keeping { ticket, request, variant, .. } = keeping;
        let mut all = self.0.get(ticket.key()).cloned().unwrap_or_default();
        all.retain(|other| other.selected(&request, now).is_none());
        all.truncate(VARIANTS - 1);
        all.insert(0, variant);
        let content = all.iter().map(Variant::content).sum();
        self.0.put(&ticket, all, content);
    }
}

impl Variant {
    /// Whether it answers a request, and if so, whether without asking the server.
    fn selected(&self, request: &Request<()>, now: SystemTime) -> Option<bool> {
        match self.policy.before_request(request, now) {
            BeforeRequest::Fresh(_) => Some(true),
            BeforeRequest::Stale { matches, .. } => matches.then_some(false),
        }
    }

    fn given(&self, now: SystemTime, method: &Method) -> Response<Bytes> {
        let body = if method == Method::HEAD { Bytes::new() } else { self.body.clone() };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response.headers_mut().insert(AGE, HeaderValue::from(self.policy.age(now).as_secs()));
        if method == Method::HEAD {
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        }
        response
    }

    fn content(&self) -> usize {
        let lines = self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 64);
        self.body.len() + 3 * lines.sum::<usize>() + 512 // the policy has the headers, too, and those of the request
    }
}

/// The stored response for a request, and whether it may be given as it is.
fn find<'a>(variants: &'a [Variant], request: &Request<()>, now: SystemTime) -> Option<(&'a Variant, bool)> {
    let personal = is_personal(request.headers());
    let fit = variants.iter().filter(|variant| !personal || is_for_all(&variant.headers));
    fit.into_iter().find_map(|variant| Some((variant, variant.selected(request, now)?)))
}

/// What a response becomes in the cache; `None`: it is not to be kept.
fn variant(request: &Request<()>, status: StatusCode, mut headers: HeaderMap, at: SystemTime) -> Option<Variant> {
    hop::strip(&mut headers, false);
    [TRANSFER_ENCODING, TRAILER].iter().for_each(|name| drop(headers.remove(name)));
    let everything = headers.get_all(VARY).iter().any(|value| value.as_bytes().contains(&b'*'));
    let personal = is_personal(request.headers()) && !is_for_all(&headers);
    if headers.contains_key(SET_COOKIE) || everything || personal || !is_of_an_age(&headers) {
        return None;
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = normal(&headers);
    let policy = CachePolicy::new_options(request, &response, at, SHARED);
    let lasts = !policy.time_to_live(at).is_zero();
    let checked = headers.contains_key(ETAG) || headers.contains_key(LAST_MODIFIED);
    (policy.is_storable() && (lasts || checked)).then(|| Variant { policy, status, headers, body: Bytes::new() })
}

/// What was kept, with what the server has said of it now.
fn confirmed(held: &Variant, request: &Request<()>, response: &response::Parts, at: SystemTime) -> Option<Variant> {
    let mut said = Response::new(());
    *said.status_mut() = response.status;
    *said.headers_mut() = normal(&response.headers);
    let AfterResponse::NotModified(..) = held.policy.after_response(request, &said, at) else { return None };
    let (mut headers, mut fresh) = (held.headers.clone(), response.headers.clone());
    hop::strip(&mut fresh, false);
    headers.remove(AGE);
    for name in fresh.keys().filter(|name| !OF_BODY.contains(&name.as_str())) {
        headers.remove(name);
        headers.extend(fresh.get_all(name).iter().map(|value| (name.clone(), value.clone())));
    }
    let mut renewed = variant(request, held.status, headers, at)?;
    renewed.body = held.body.clone();
    Some(renewed)
}

/// By which host and path a resource is known; `None`: the request names no single one.
fn key(request: &Parts) -> Option<Vec<u8>> {
    let mut hosts = request.headers.get_all(HOST).iter();
    let (host, None) = (hosts.next()?, hosts.next()) else { return None };
    let path = request.uri.path_and_query().filter(|_| request.uri.authority().is_none())?;
    Some([host.as_bytes().to_ascii_lowercase().as_slice(), path.as_str().as_bytes()].concat())
}

/// The request as one for the whole resource.
fn plain(request: &Parts) -> Request<()> {
    let mut plain = Request::new(());
    *plain.uri_mut() = request.uri.clone();
    *plain.headers_mut() = normal(&request.headers);
    plain
}

fn is_personal(headers: &HeaderMap) -> bool {
    PERSONAL.iter().any(|name| headers.contains_key(name))
}

/// Whether the server gives it to anybody, whoever asked.
fn is_for_all(headers: &HeaderMap) -> bool {
    let values = headers.get_all(CACHE_CONTROL).iter().filter_map(|value| value.to_str().ok());
    let mut words = values.flat_map(|value| value.split(',')).map(|word| word.trim().to_ascii_lowercase());
    words.any(|word| word == "public" || word.starts_with("s-maxage="))
}

/// Whether its age, if it names one, is a number with which one can reckon.
fn is_of_an_age(headers: &HeaderMap) -> bool {
    let age = |value: &HeaderValue| value.to_str().ok()?.parse::<u64>().ok();
    headers.get_all(AGE).iter().all(|value| age(value).is_some_and(|age| age <= OLDEST))
}

/// The words of `Cache-Control` in small letters, which mean the same.
fn normal(headers: &HeaderMap) -> HeaderMap {
    let mut normal = headers.clone();
    for (_, value) in normal.iter_mut().filter(|(name, _)| **name == CACHE_CONTROL) {
        let small = HeaderValue::from_bytes(&value.as_bytes().to_ascii_lowercase());
        *value = small.expect("what was a header's value is one in small letters");
    }
    normal
}
