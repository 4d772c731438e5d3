//! Which responses are kept and given again, by the rules of a *shared* cache (RFC 9111), which the crate `http-cache-semantics` knows. Pure: time is an
//! argument.
//!
//! A cache belongs to one function, or one chain; but a function serves many people, so what is meant for one of them (`private`, answers to requests
//! with `Authorization` or `AddressCookie`, `Set-Cookie`) stays out, unless the server says `public` or `s-maxage`. Freshness is never guessed: where the server
//! names no time, each use is checked with the server (`ETag`, `Last-Modified`), and without these nothing is kept. Requests that bring conditions or
//! ranges of their own pass by.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::header::{
    AGE, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, COOKIE, ETAG, EXPECT, HOST, HeaderName,
    HeaderValue, IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE,
    LAST_MODIFIED, RANGE, SET_COOKIE, TRAILER, TRANSFER_ENCODING, UPGRADE, VARY,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode, response};
use http_cache_semantics::{AfterResponse, BeforeRequest, CacheOptions, CachePolicy};

use super::hop;
use crate::lru::{ByteBoundedLru, CacheTicket};

#[cfg(test)]
mod tests;

/// Headers by which a request is about more than its resource: the cache stays out of it.
const BYPASS_HEADERS: [HeaderName; 8] = [
    RANGE,
    IF_RANGE,
    IF_MATCH,
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    EXPECT,
    UPGRADE,
];
/// Headers that say whose request it is.
const PERSONAL_HEADERS: [HeaderName; 2] = [AUTHORIZATION, COOKIE];
/// What belongs to the body that is kept, whatever a check says (RFC 9111 section 3.2).
const BODY_HEADERS: [&str; 5] = [
    "content-length",
    "content-encoding",
    "content-type",
    "content-range",
    "transfer-encoding",
];
/// Responses that are kept of one resource, by what they vary with.
const MAX_VARIANTS: usize = 4;
/// The highest age that has a meaning (RFC 9111 section 1.2.2).
const MAX_AGE_SECONDS: u64 = 1 << 31;

const SHARED_CACHE_OPTIONS: CacheOptions = CacheOptions {
    shared: true,
    cache_heuristic: 0.0,
    immutable_min_time_to_live: Duration::ZERO,
    ignore_cargo_cult: false,
};

/// See the module.
#[derive(Debug)]
pub(super) struct HttpCache(ByteBoundedLru<Vec<StoredResponse>>);

/// One response as it is kept.
#[derive(Debug, Clone)]
struct StoredResponse {
    policy: CachePolicy,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// What is to be done with a request.
#[derive(Debug)]
pub(super) enum CacheLookup {
    /// It is none of the cache's business.
    Bypass,
    /// This is the answer.
    Fresh(Response<Bytes>),
    /// The server is asked, and its answer shown to the cache.
    Fetch(Box<PendingFetch>),
}

/// A request whose answer may be kept.
#[derive(Debug)]
pub(super) struct PendingFetch {
    ticket: CacheTicket,
    /// As the client sent it.
    request: Request<()>,
    requested_at: SystemTime,
    /// What the server is asked to confirm.
    stale: Option<StoredResponse>,
}

/// What a response means for the cache.
#[derive(Debug)]
pub(super) enum CacheOutcome {
    /// It goes on as it is.
    NotStored,
    /// What is kept is still good: this is the answer.
    Confirmed(Response<Bytes>),
    /// It says that something is still good which nobody has: the server is to be asked again, without conditions.
    Unmatched,
    /// It goes on, and is kept once its body has come.
    Store(Box<PendingStore>),
}

/// A response whose body is on its way.
#[derive(Debug)]
pub(super) struct PendingStore {
    ticket: CacheTicket,
    request: Request<()>,
    variant: StoredResponse,
    /// Longest body that is kept.
    pub(super) max_body_bytes: usize,
}

impl PendingFetch {
    /// What has the server say whether what is kept is still good.
    pub(super) fn revalidation_headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let stored = |name| {
            self.stale
                .iter()
                .find_map(|held| held.headers.get(&name))
                .cloned()
        };
        match (stored(ETAG), stored(LAST_MODIFIED)) {
            (Some(tag), _) => vec![(IF_NONE_MATCH, tag)],
            (None, Some(date)) => vec![(IF_MODIFIED_SINCE, date)],
            (None, None) => Vec::new(),
        }
    }
}

impl HttpCache {
    /// An empty one for so many bytes.
    pub(super) fn new(bound: u64) -> Self {
        Self(ByteBoundedLru::new(
            usize::try_from(bound).unwrap_or(usize::MAX),
        ))
    }

    /// A request, without a body or with one.
    pub(super) fn look_up(&mut self, request: &Parts, empty: bool, now: SystemTime) -> CacheLookup {
        let Some(key) = cache_key(request) else {
            return CacheLookup::Bypass;
        };
        if !request.method.is_safe() {
            self.0.invalidate_key(&key);
            return CacheLookup::Bypass;
        }
        let own = BYPASS_HEADERS
            .iter()
            .any(|name| request.headers.contains_key(name));
        if !empty || own || !(request.method == Method::GET || request.method == Method::HEAD) {
            return CacheLookup::Bypass;
        }
        let as_get = plain_request(request);
        let found = self
            .0
            .get(&key)
            .and_then(|variants| find_stored(variants, &as_get, now));
        match found {
            Some((variant, true)) => CacheLookup::Fresh(variant.to_response(now, &request.method)),
            _ if request.method == Method::HEAD => CacheLookup::Bypass,
            found => {
                let held = found.map(|(variant, _)| variant.clone());
                CacheLookup::Fetch(Box::new(PendingFetch {
                    ticket: self.0.issue_ticket(&key),
                    request: as_get,
                    requested_at: now,
                    stale: held,
                }))
            }
        }
    }

    /// The server has answered a request that may have changed something: what was read meanwhile may be older than that.
    pub(super) fn invalidate(&mut self, request: &Parts) {
        if let Some(key) = cache_key(request) {
            self.0.invalidate_key(&key);
        }
    }

    /// The server has answered what was asked.
    pub(super) fn handle_response(
        &mut self,
        asked: PendingFetch,
        response: &response::Parts,
        now: SystemTime,
    ) -> CacheOutcome {
        let PendingFetch {
            ticket,
            request,
            requested_at: at,
            stale: held,
        } = asked;
        let longest = self.0.max_value_bytes();
        if response.status == StatusCode::NOT_MODIFIED
            && let Some(held) = held
        {
            return match confirm_stored(&held, &request, response, at) {
                Some(variant) => {
                    let given = variant.to_response(now, &Method::GET);
                    self.insert(
                        PendingStore {
                            ticket,
                            request,
                            variant,
                            max_body_bytes: longest,
                        },
                        now,
                    );
                    CacheOutcome::Confirmed(given)
                }
                None => CacheOutcome::Unmatched,
            };
        }
        match storable_response(&request, response.status, response.headers.clone(), at) {
            Some(variant) => CacheOutcome::Store(Box::new(PendingStore {
                ticket,
                request,
                variant,
                max_body_bytes: longest,
            })),
            None => CacheOutcome::NotStored,
        }
    }

    /// The whole body has come.
    pub(super) fn store(&mut self, mut keeping: PendingStore, body: Bytes, now: SystemTime) {
        let length = keeping
            .variant
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        if length.is_some_and(|length: usize| length != body.len()) {
            return;
        }
        keeping.variant.body = body;
        self.insert(keeping, now);
    }

    fn insert(&mut self, keeping: PendingStore, now: SystemTime) {
        let PendingStore {
            ticket,
            request,
            variant,
            ..
        } = keeping;
        let mut all = self.0.get(ticket.key()).cloned().unwrap_or_default();
        all.retain(|other| other.match_request(&request, now).is_none());
        all.truncate(MAX_VARIANTS - 1);
        all.insert(0, variant);
        let content = all.iter().map(StoredResponse::content_bytes).sum();
        self.0.put(&ticket, all, content);
    }
}

impl StoredResponse {
    /// Whether it answers a request, and if so, whether without asking the server.
    fn match_request(&self, request: &Request<()>, now: SystemTime) -> Option<bool> {
        match self.policy.before_request(request, now) {
            BeforeRequest::Fresh(_) => Some(true),
            BeforeRequest::Stale { matches, .. } => matches.then_some(false),
        }
    }

    fn to_response(&self, now: SystemTime, method: &Method) -> Response<Bytes> {
        let body = if method == Method::HEAD {
            Bytes::new()
        } else {
            self.body.clone()
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
            .headers_mut()
            .insert(AGE, HeaderValue::from(self.policy.age(now).as_secs()));
        if method == Method::HEAD {
            response
                .headers_mut()
                .insert(CONTENT_LENGTH, HeaderValue::from(self.body.len()));
        }
        response
    }

    fn content_bytes(&self) -> usize {
        let lines = self
            .headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 64);
        self.body.len() + 3 * lines.sum::<usize>() + 512 // the policy has the headers, too, and those of the request
    }
}

/// The stored response for a request, and whether it may be given as it is.
fn find_stored<'a>(
    variants: &'a [StoredResponse],
    request: &Request<()>,
    now: SystemTime,
) -> Option<(&'a StoredResponse, bool)> {
    let personal = is_personal(request.headers());
    let fit = variants
        .iter()
        .filter(|variant| !personal || is_public(&variant.headers));
    fit.into_iter()
        .find_map(|variant| Some((variant, variant.match_request(request, now)?)))
}

/// What a response becomes in the cache; `NoConnection`: it is not to be kept.
fn storable_response(
    request: &Request<()>,
    status: StatusCode,
    mut headers: HeaderMap,
    at: SystemTime,
) -> Option<StoredResponse> {
    hop::strip_hop_headers(&mut headers, false);
    [TRANSFER_ENCODING, TRAILER]
        .iter()
        .for_each(|name| drop(headers.remove(name)));
    let everything = headers
        .get_all(VARY)
        .iter()
        .any(|value| value.as_bytes().contains(&b'*'));
    let personal = is_personal(request.headers()) && !is_public(&headers);
    if headers.contains_key(SET_COOKIE) || everything || personal || !has_valid_age(&headers) {
        return None;
    }
    let mut response = Response::new(());
    *response.status_mut() = status;
    *response.headers_mut() = normalize_headers(&headers);
    let policy = CachePolicy::new_options(request, &response, at, SHARED_CACHE_OPTIONS);
    let lasts = !policy.time_to_live(at).is_zero();
    let checked = headers.contains_key(ETAG) || headers.contains_key(LAST_MODIFIED);
    (policy.is_storable() && (lasts || checked)).then(|| StoredResponse {
        policy,
        status,
        headers,
        body: Bytes::new(),
    })
}

/// What was kept, with what the server has said of it now.
fn confirm_stored(
    held: &StoredResponse,
    request: &Request<()>,
    response: &response::Parts,
    at: SystemTime,
) -> Option<StoredResponse> {
    let mut said = Response::new(());
    *said.status_mut() = response.status;
    *said.headers_mut() = normalize_headers(&response.headers);
    let AfterResponse::NotModified(..) = held.policy.after_response(request, &said, at) else {
        return None;
    };
    let (mut headers, mut fresh) = (held.headers.clone(), response.headers.clone());
    hop::strip_hop_headers(&mut fresh, false);
    headers.remove(AGE);
    for name in fresh
        .keys()
        .filter(|name| !BODY_HEADERS.contains(&name.as_str()))
    {
        headers.remove(name);
        headers.extend(
            fresh
                .get_all(name)
                .iter()
                .map(|value| (name.clone(), value.clone())),
        );
    }
    let mut renewed = storable_response(request, held.status, headers, at)?;
    renewed.body = held.body.clone();
    Some(renewed)
}

/// By which host and path a resource is known; `NoConnection`: the request names no single one.
fn cache_key(request: &Parts) -> Option<Vec<u8>> {
    let mut hosts = request.headers.get_all(HOST).iter();
    let (host, None) = (hosts.next()?, hosts.next()) else {
        return None;
    };
    let path = request
        .uri
        .path_and_query()
        .filter(|_| request.uri.authority().is_none())?;
    Some(
        [
            host.as_bytes().to_ascii_lowercase().as_slice(),
            path.as_str().as_bytes(),
        ]
        .concat(),
    )
}

/// The request as one for the whole resource.
fn plain_request(request: &Parts) -> Request<()> {
    let mut plain = Request::new(());
    *plain.uri_mut() = request.uri.clone();
    *plain.headers_mut() = normalize_headers(&request.headers);
    plain
}

fn is_personal(headers: &HeaderMap) -> bool {
    PERSONAL_HEADERS
        .iter()
        .any(|name| headers.contains_key(name))
}

/// Whether the server gives it to anybody, whoever asked.
fn is_public(headers: &HeaderMap) -> bool {
    let values = headers
        .get_all(CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut words = values
        .flat_map(|value| value.split(','))
        .map(|word| word.trim().to_ascii_lowercase());
    words.any(|word| word == "public" || word.starts_with("s-maxage="))
}

/// Whether its age, if it names one, is a number with which one can reckon.
fn has_valid_age(headers: &HeaderMap) -> bool {
    let age = |value: &HeaderValue| value.to_str().ok()?.parse::<u64>().ok();
    headers
        .get_all(AGE)
        .iter()
        .all(|value| age(value).is_some_and(|age| age <= MAX_AGE_SECONDS))
}

/// The words of `Cache-Control` in small letters, which mean the same.
fn normalize_headers(headers: &HeaderMap) -> HeaderMap {
    let mut normal = headers.clone();
    for (_, value) in normal
        .iter_mut()
        .filter(|(name, _)| **name == CACHE_CONTROL)
    {
        let small = HeaderValue::from_bytes(&value.as_bytes().to_ascii_lowercase());
        *value = small.expect("what was a header's value is one in small letters");
    }
    normal
}
