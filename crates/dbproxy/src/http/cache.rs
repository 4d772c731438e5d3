//! Storage and reuse of responses by the rules of a *shared* cache (RFC 9111). Pure: time is an
//! argument.
//!
//! The crate `http-cache-semantics` decides what is storable and fresh. A cache belongs to one
//! function or one chain, but a function serves many people. So personal responses stay out:
//! `private`, `Set-Cookie`, and answers to requests with `Authorization` or `Cookie`. The server
//! can allow the last two with `public` or `s-maxage`.
//!
//! Freshness is never guessed. Where the server names no lifetime, each use is validated with the
//! server (`ETag`, `Last-Modified`). A response without a validator is not stored then. Conditional
//! and range requests bypass the cache.

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

use crate::lru::{ByteBoundedLru, CacheTicket};
use nearpath_wire::hop::headers::strip_connection_headers;

#[cfg(test)]
mod tests;

/// Headers that make a request about more than its resource; such requests bypass the cache.
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
/// Headers that identify the person behind a request.
const PERSONAL_HEADERS: [HeaderName; 2] = [AUTHORIZATION, COOKIE];
/// Headers of the stored body, which a 304 must not change (RFC 9111 section 3.2).
const BODY_HEADERS: [&str; 5] = [
    "content-length",
    "content-encoding",
    "content-type",
    "content-range",
    "transfer-encoding",
];
/// Responses stored per resource, one for each set of `Vary` values.
const MAX_VARIANTS: usize = 4;
/// The highest meaningful age in seconds (RFC 9111 section 1.2.2).
const MAX_AGE_SECONDS: u64 = 1 << 31;

// A heuristic of 0: freshness is never guessed (ADR 0032).
const SHARED_CACHE_OPTIONS: CacheOptions = CacheOptions {
    shared: true,
    cache_heuristic: 0.0,
    immutable_min_time_to_live: Duration::ZERO,
    ignore_cargo_cult: false,
};

/// Stored responses of one destination.
#[derive(Debug)]
pub(super) struct HttpCache(ByteBoundedLru<Vec<StoredResponse>>);

/// A response in the cache.
#[derive(Debug, Clone)]
struct StoredResponse {
    policy: CachePolicy,
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

/// Result of a lookup.
#[derive(Debug)]
pub(super) enum CacheLookup {
    /// The cache does not apply to this request.
    Bypass,
    /// A stored response that is fresh.
    Fresh(Response<Bytes>),
    /// The server has to be asked; the cache then sees its response.
    Fetch(Box<PendingFetch>),
}

/// A request whose response may be stored.
#[derive(Debug)]
pub(super) struct PendingFetch {
    ticket: CacheTicket,
    /// The client's request, without conditions.
    request: Request<()>,
    requested_at: SystemTime,
    /// A stored response that the server is asked to validate.
    stale: Option<StoredResponse>,
}

/// Result of a server's response for the cache.
#[derive(Debug)]
pub(super) enum CacheOutcome {
    /// The response passes through and is not stored.
    NotStored,
    /// The stored response is still valid and answers the request.
    Confirmed(Response<Bytes>),
    /// A 304 that matches no stored response. The request is sent again without conditions.
    Unmatched,
    /// The response passes through and is stored after its body is complete.
    Store(Box<PendingStore>),
}

/// A response whose body is still arriving.
#[derive(Debug)]
pub(super) struct PendingStore {
    ticket: CacheTicket,
    request: Request<()>,
    variant: StoredResponse,
    /// The longest body that is stored.
    pub(super) max_body_bytes: usize,
}

impl PendingFetch {
    /// Returns the headers that ask the server to validate the stored response.
    pub(super) fn revalidation_headers(&self) -> Vec<(HeaderName, HeaderValue)> {
        let stored = |name| {
            self.stale
                .iter()
                .find_map(|stale| stale.headers.get(&name))
                .cloned()
        };
        match (stored(ETAG), stored(LAST_MODIFIED)) {
            // RFC 9110 section 13.1.3: `If-None-Match` takes precedence, so the date is needed only
            // without a tag.
            (Some(tag), _) => vec![(IF_NONE_MATCH, tag)],
            (None, Some(date)) => vec![(IF_MODIFIED_SINCE, date)],
            (None, None) => Vec::new(),
        }
    }
}

impl HttpCache {
    /// Creates an empty cache for so many bytes.
    pub(super) fn new(max_bytes: u64) -> Self {
        Self(ByteBoundedLru::new(
            usize::try_from(max_bytes).unwrap_or(usize::MAX),
        ))
    }

    /// Looks up a request. `empty` says whether it has no body.
    pub(super) fn look_up(&mut self, request: &Parts, empty: bool, now: SystemTime) -> CacheLookup {
        let Some(key) = cache_key(request) else {
            return CacheLookup::Bypass;
        };
        // RFC 9111 section 4.4: an unsafe method invalidates its target. The entry goes before the
        // server can see the write, and again after it.
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
        // The lookup uses the request without its method, so that HEAD finds the response of GET.
        let found = self
            .0
            .get(&key)
            .and_then(|variants| find_stored(variants, &as_get, now));
        match found {
            Some((variant, true)) => CacheLookup::Fresh(variant.to_response(now, &request.method)),
            // The response to HEAD has no body to store, so the server answers without the cache.
            _ if request.method == Method::HEAD => CacheLookup::Bypass,
            found => {
                let stale = found.map(|(variant, _)| variant.clone());
                CacheLookup::Fetch(Box::new(PendingFetch {
                    ticket: self.0.issue_ticket(&key),
                    request: as_get,
                    requested_at: now,
                    stale,
                }))
            }
        }
    }

    /// Invalidates the target of an unsafe request after its response: a read in between may have
    /// seen the old value.
    pub(super) fn invalidate(&mut self, request: &Parts) {
        if let Some(key) = cache_key(request) {
            self.0.invalidate_key(&key);
        }
    }

    /// Handles the server's response to a fetch.
    pub(super) fn handle_response(
        &mut self,
        pending: PendingFetch,
        response: &response::Parts,
        now: SystemTime,
    ) -> CacheOutcome {
        let PendingFetch {
            ticket,
            request,
            requested_at: at,
            stale,
        } = pending;
        let max_body_bytes = self.0.max_value_bytes();
        if response.status == StatusCode::NOT_MODIFIED
            && let Some(stale) = stale
        {
            return match confirm_stored(&stale, &request, response, at) {
                Some(variant) => {
                    let response_now = variant.to_response(now, &Method::GET);
                    self.insert(
                        PendingStore {
                            ticket,
                            request,
                            variant,
                            max_body_bytes,
                        },
                        now,
                    );
                    CacheOutcome::Confirmed(response_now)
                }
                None => CacheOutcome::Unmatched,
            };
        }
        match storable_response(&request, response.status, response.headers.clone(), at) {
            Some(variant) => CacheOutcome::Store(Box::new(PendingStore {
                ticket,
                request,
                variant,
                max_body_bytes,
            })),
            None => CacheOutcome::NotStored,
        }
    }

    /// Stores a response whose body is complete.
    pub(super) fn store(&mut self, mut pending: PendingStore, body: Bytes, now: SystemTime) {
        let length = pending
            .variant
            .headers
            .get(CONTENT_LENGTH)
            .and_then(|value| value.to_str().ok()?.parse().ok());
        // A body that contradicts its own length must not be served again.
        if length.is_some_and(|length: usize| length != body.len()) {
            return;
        }
        pending.variant.body = body;
        self.insert(pending, now);
    }

    fn insert(&mut self, pending: PendingStore, now: SystemTime) {
        let PendingStore {
            ticket,
            request,
            variant,
            ..
        } = pending;
        let mut all = self.0.get(ticket.key()).cloned().unwrap_or_default();
        // The new response replaces those that would answer the same request: the latest one counts
        // (RFC 9111 section 4).
        all.retain(|other| other.match_request(&request, now).is_none());
        // The oldest variants go first: new ones are inserted at the front.
        all.truncate(MAX_VARIANTS - 1);
        all.insert(0, variant);
        let content = all.iter().map(StoredResponse::content_bytes).sum();
        self.0.put(&ticket, all, content);
    }
}

impl StoredResponse {
    /// Returns `None` if the response does not match the request, else whether it is fresh.
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
        // RFC 9111 section 5.1: a stored response carries its current age.
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

/// Finds the stored response for a request, and whether it is fresh.
fn find_stored<'a>(
    variants: &'a [StoredResponse],
    request: &Request<()>,
    now: SystemTime,
) -> Option<(&'a StoredResponse, bool)> {
    // RFC 9111 section 3.5. It is checked on use as well: the stored response may come from an
    // anonymous request.
    let personal = is_personal(request.headers());
    let candidates = variants
        .iter()
        .filter(|variant| !personal || is_public(&variant.headers));
    candidates
        .into_iter()
        .find_map(|variant| Some((variant, variant.match_request(request, now)?)))
}

/// Converts a response for storage. `None`: it must not be stored.
fn storable_response(
    request: &Request<()>,
    status: StatusCode,
    mut headers: HeaderMap,
    at: SystemTime,
) -> Option<StoredResponse> {
    strip_connection_headers(&mut headers, false);
    // The stored body is already decoded, so its transfer coding no longer applies.
    [TRANSFER_ENCODING, TRAILER]
        .iter()
        .for_each(|name| drop(headers.remove(name)));
    // `Vary: *` never matches another request (RFC 9111 section 4.1).
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

/// Returns the stored response with the headers of the 304 that validated it (RFC 9111 section
/// 3.2).
fn confirm_stored(
    stale: &StoredResponse,
    request: &Request<()>,
    response: &response::Parts,
    at: SystemTime,
) -> Option<StoredResponse> {
    let mut validation = Response::new(());
    *validation.status_mut() = response.status;
    *validation.headers_mut() = normalize_headers(&response.headers);
    let AfterResponse::NotModified(..) = stale.policy.after_response(request, &validation, at)
    else {
        return None;
    };
    let (mut headers, mut fresh) = (stale.headers.clone(), response.headers.clone());
    strip_connection_headers(&mut fresh, false);
    // The age restarts with the validation.
    headers.remove(AGE);
    for name in fresh
        .keys()
        .filter(|name| !BODY_HEADERS.contains(&name.as_str()))
    {
        // All old lines go before the new ones are added: a header may have several lines.
        headers.remove(name);
        headers.extend(
            fresh
                .get_all(name)
                .iter()
                .map(|value| (name.clone(), value.clone())),
        );
    }
    let mut renewed = storable_response(request, stale.status, headers, at)?;
    renewed.body = stale.body.clone();
    Some(renewed)
}

/// Returns the key of a resource: host and path. `None`: the request names no single resource.
fn cache_key(request: &Parts) -> Option<Vec<u8>> {
    // Two `Host` headers are ambiguous, and servers disagree about which one counts (RFC 9112
    // section 3.2).
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

/// Returns the request as a GET for the whole resource.
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

/// Returns whether the server allows the response for everyone.
fn is_public(headers: &HeaderMap) -> bool {
    // `must-revalidate` would do by RFC 9111 section 3.5; it is left out on purpose, because it
    // says nothing about other users.
    let values = headers
        .get_all(CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let mut words = values
        .flat_map(|value| value.split(','))
        .map(|word| word.trim().to_ascii_lowercase());
    words.any(|word| word == "public" || word.starts_with("s-maxage="))
}

/// Returns whether each age is a number within range.
fn has_valid_age(headers: &HeaderMap) -> bool {
    // `http-cache-semantics` overflows on an absurd age, so such a response is never handed to it.
    let age = |value: &HeaderValue| value.to_str().ok()?.parse::<u64>().ok();
    headers
        .get_all(AGE)
        .iter()
        .all(|value| age(value).is_some_and(|age| age <= MAX_AGE_SECONDS))
}

/// Lowers the case of `Cache-Control`, whose directives are case-insensitive (RFC 9111 section
/// 5.2).
fn normalize_headers(headers: &HeaderMap) -> HeaderMap {
    // `http-cache-semantics` compares directives with case: `No-Store` would be ignored.
    let mut normal = headers.clone();
    for (_, value) in normal
        .iter_mut()
        .filter(|(name, _)| **name == CACHE_CONTROL)
    {
        let small = HeaderValue::from_bytes(&value.as_bytes().to_ascii_lowercase());
        *value = small.expect("lower case keeps a header value valid");
    }
    normal
}
