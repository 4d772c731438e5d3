//! The rules of RFC 9111, one by one, and any headers at all.

use proptest::prelude::*;

use super::*;

const START_TIME: Duration = Duration::from_secs(1_700_000_000);

fn time_at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + START_TIME + Duration::from_secs(seconds)
}

type HeaderLines<'a> = &'a [(&'static str, &'a str)];

fn headers(lines: HeaderLines<'_>) -> HeaderMap {
    let line = |(name, value): &(&'static str, &str)| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )
    };
    lines.iter().map(line).collect()
}

fn request(method: Method, lines: HeaderLines<'_>) -> Parts {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = "/a?b".parse().unwrap();
    *request.headers_mut() = headers(lines);
    request
        .headers_mut()
        .insert(HOST, HeaderValue::from_static("h"));
    request.into_parts().0
}

fn response(status: u16, lines: HeaderLines<'_>) -> response::Parts {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    *response.headers_mut() = headers(lines);
    response.into_parts().0
}

/// Looks up a GET request.
fn look_up(cache: &mut HttpCache, request_headers: HeaderLines<'_>, seconds: u64) -> CacheLookup {
    cache.look_up(
        &request(Method::GET, request_headers),
        true,
        time_at(seconds),
    )
}

/// Sends a request that the server answers so. Returns whether the server was asked and its
/// response stored.
fn fetch_and_store(
    cache: &mut HttpCache,
    request_headers: HeaderLines<'_>,
    response_headers: HeaderLines<'_>,
    body: &'static str,
) -> bool {
    let CacheLookup::Fetch(asked) = look_up(cache, request_headers, 0) else {
        return false;
    };
    match cache.handle_response(*asked, &response(200, response_headers), time_at(0)) {
        CacheOutcome::Store(keeping) => {
            cache.store(*keeping, Bytes::from_static(body.as_bytes()), time_at(0));
            true
        }
        _ => false,
    }
}

fn fresh_response(look: CacheLookup) -> Option<Response<Bytes>> {
    match look {
        CacheLookup::Fresh(response) => Some(response),
        _ => None,
    }
}

#[test]
fn a_fresh_response_is_served_with_its_age() {
    let mut cache = HttpCache::new(1 << 20);
    assert!(fetch_and_store(
        &mut cache,
        &[],
        &[
            ("cache-control", "max-age=60"),
            ("link", "a"),
            ("link", "b")
        ],
        "body"
    ));
    let served = fresh_response(look_up(&mut cache, &[], 30)).expect("it is fresh");
    assert_eq!(
        (served.body().as_ref(), &served.headers()[AGE]),
        (&b"body"[..], &HeaderValue::from_static("30"))
    );
    assert_eq!(
        served.headers().get_all("link").iter().count(),
        2,
        "lines of one name are all given"
    );
    let CacheLookup::Fresh(head) = cache.look_up(&request(Method::HEAD, &[]), true, time_at(30))
    else {
        panic!("HEAD is answered")
    };
    assert!(head.body().is_empty() && head.headers()[CONTENT_LENGTH] == "4");
    assert!(
        fresh_response(look_up(&mut cache, &[], 60)).is_none(),
        "its time is over"
    );
    assert!(
        fresh_response(look_up(&mut cache, &[("cache-control", "no-cache")], 1)).is_none(),
        "the client wants it checked"
    );
}

#[test]
fn responses_that_must_not_be_stored_are_not() {
    let never: [HeaderLines<'_>; 12] = [
        &[("cache-control", "no-store")],
        &[("cache-control", "max-age=60, No-Store")],
        &[("cache-control", "private, max-age=60")],
        &[("cache-control", "Private=\"x\", max-age=60")],
        &[("cache-control", "max-age=60"), ("set-cookie", "a=b")],
        &[
            ("cache-control", "public, max-age=60"),
            ("set-cookie", "a=b"),
        ],
        &[("cache-control", "max-age=60"), ("vary", "accept, *")],
        &[
            ("cache-control", "max-age=60"),
            ("age", "99999999999999999999"),
        ],
        &[
            ("cache-control", "max-age=60"),
            ("age", "18446744073709551615"),
        ],
        &[("cache-control", "max-age=0")],
        &[("date", "Tue, 14 Nov 2023 22:13:20 GMT"), ("expires", "0")],
        &[],
    ];
    for response_headers in never {
        let mut cache = HttpCache::new(1 << 20);
        assert!(
            !fetch_and_store(&mut cache, &[], response_headers, "x")
                && fresh_response(look_up(&mut cache, &[], 0)).is_none(),
            "{response_headers:?}"
        );
    }
    let mut cache = HttpCache::new(1 << 20);
    assert!(!fetch_and_store(
        &mut cache,
        &[("cache-control", "no-store")],
        &[("cache-control", "max-age=60")],
        "x"
    ));
}

#[test]
fn a_personal_response_is_not_served_to_others() {
    for personal in [("authorization", "Bearer a"), ("cookie", "a=b")] {
        let mut cache = HttpCache::new(1 << 20);
        assert!(!fetch_and_store(
            &mut cache,
            &[personal],
            &[("cache-control", "max-age=60")],
            "mine"
        ));
        assert!(fetch_and_store(
            &mut cache,
            &[],
            &[("cache-control", "max-age=60")],
            "anybody's"
        ));
        assert!(
            fresh_response(look_up(&mut cache, &[personal], 1)).is_none(),
            "who says who he is may be told something else"
        );
        assert!(fetch_and_store(
            &mut cache,
            &[personal],
            &[("cache-control", "public, max-age=60")],
            "all"
        ));
        assert_eq!(
            fresh_response(look_up(&mut cache, &[personal], 1))
                .unwrap()
                .body(),
            "all"
        );
    }
}

#[test]
fn varying_headers_have_to_match() {
    let mut cache = HttpCache::new(1 << 20);
    let response_headers: HeaderLines<'_> =
        &[("cache-control", "max-age=60"), ("vary", "Accept-Language")];
    for language in ["de", "en"] {
        let body = if language == "de" { "gut" } else { "good" };
        assert!(fetch_and_store(
            &mut cache,
            &[("accept-language", language)],
            response_headers,
            body
        ));
    }
    assert_eq!(
        fresh_response(look_up(&mut cache, &[("accept-language", "de")], 1))
            .unwrap()
            .body(),
        "gut"
    );
    assert_eq!(
        fresh_response(look_up(&mut cache, &[("accept-language", "en")], 1))
            .unwrap()
            .body(),
        "good"
    );
    assert!(fresh_response(look_up(&mut cache, &[], 1)).is_none());
}

#[test]
fn a_stale_response_is_confirmed_or_replaced() {
    let mut cache = HttpCache::new(1 << 20);
    let response_headers: HeaderLines<'_> = &[
        ("cache-control", "max-age=5"),
        ("etag", "\"1\""),
        ("content-type", "text/plain"),
    ];
    assert!(fetch_and_store(&mut cache, &[], response_headers, "body"));
    let CacheLookup::Fetch(asked) = look_up(&mut cache, &[], 10) else {
        panic!("it is stale")
    };
    assert_eq!(
        asked.revalidation_headers(),
        [(IF_NONE_MATCH, HeaderValue::from_static("\"1\""))]
    );
    let same = response(
        304,
        &[
            ("etag", "\"1\""),
            ("cache-control", "max-age=50"),
            ("content-length", "0"),
            ("x-new", "1"),
        ],
    );
    let CacheOutcome::Confirmed(served) = cache.handle_response(*asked, &same, time_at(10)) else {
        panic!("it is good")
    };
    assert_eq!(
        (
            served.status(),
            served.body().as_ref(),
            &served.headers()["x-new"]
        ),
        (StatusCode::OK, &b"body"[..], &HeaderValue::from_static("1"))
    );
    assert!(
        !served.headers().contains_key(CONTENT_LENGTH),
        "the length is that of the body that is kept"
    );
    assert_eq!(
        fresh_response(look_up(&mut cache, &[], 40))
            .unwrap()
            .headers()[AGE],
        "30",
        "it is young again"
    );
    let CacheLookup::Fetch(asked) = look_up(&mut cache, &[], 100) else {
        panic!("it is stale")
    };
    assert!(matches!(
        cache.handle_response(*asked, &response(304, &[("etag", "\"2\"")]), time_at(100)),
        CacheOutcome::Unmatched
    ));
    let CacheLookup::Fetch(asked) = look_up(&mut cache, &[], 100) else {
        panic!("it is stale")
    };
    let CacheOutcome::Store(new) =
        cache.handle_response(*asked, &response(200, response_headers), time_at(100))
    else {
        panic!("it is new")
    };
    cache.store(*new, Bytes::from_static(b"new"), time_at(100));
    assert_eq!(
        fresh_response(look_up(&mut cache, &[], 101))
            .unwrap()
            .body(),
        "new"
    );
}

#[test]
fn a_write_discards_stored_and_pending_responses() {
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        let mut cache = HttpCache::new(1 << 20);
        let response_headers: HeaderLines<'_> = &[("cache-control", "max-age=60")];
        assert!(fetch_and_store(&mut cache, &[], response_headers, "old"));
        let write = request(method, &[]);
        assert!(matches!(
            cache.look_up(&write, false, time_at(1)),
            CacheLookup::Bypass
        ));
        let CacheLookup::Fetch(asked) = look_up(&mut cache, &[], 1) else {
            panic!("it was dropped")
        };
        let CacheOutcome::Store(keeping) =
            cache.handle_response(*asked, &response(200, response_headers), time_at(1))
        else {
            panic!()
        };
        cache.invalidate(&write);
        cache.store(
            *keeping,
            Bytes::from_static(b"perhaps from before"),
            time_at(1),
        );
        assert!(fresh_response(look_up(&mut cache, &[], 1)).is_none());
    }
}

#[test]
fn conditional_requests_bypass_the_cache() {
    let mut cache = HttpCache::new(1 << 20);
    assert!(fetch_and_store(
        &mut cache,
        &[],
        &[("cache-control", "max-age=60"), ("etag", "\"1\"")],
        "body"
    ));
    for own in [
        ("range", "bytes=0-1"),
        ("if-none-match", "\"1\""),
        ("if-modified-since", "x"),
        ("expect", "100-continue"),
    ] {
        assert!(
            matches!(look_up(&mut cache, &[own], 1), CacheLookup::Bypass),
            "{own:?}"
        );
    }
    assert!(
        matches!(
            cache.look_up(&request(Method::GET, &[]), false, time_at(1)),
            CacheLookup::Bypass
        ),
        "it has a body"
    );
    let mut twice = request(Method::GET, &[]);
    twice
        .headers
        .append(HOST, HeaderValue::from_static("other"));
    assert!(
        matches!(cache.look_up(&twice, true, time_at(1)), CacheLookup::Bypass),
        "whose is it?"
    );
}

#[test]
fn a_body_of_another_length_is_not_kept() {
    let mut cache = HttpCache::new(1 << 20);
    assert!(fetch_and_store(
        &mut cache,
        &[],
        &[("cache-control", "max-age=60"), ("content-length", "5")],
        "four"
    ));
    assert!(fresh_response(look_up(&mut cache, &[], 1)).is_none());
}

/// Header values such as servers and attackers send.
fn any_header_value() -> impl Strategy<Value = String> {
    let words = [
        "max-age=1",
        "max-age=99999999999999999999999",
        "s-maxage=5",
        "public",
        "private",
        "no-cache",
        "must-revalidate",
        "immutable",
        "max-stale",
        "min-fresh=3",
        "\"",
        "=",
        ",",
        "W/\"1\"",
        "\"1\"",
        "18446744073709551615",
        "4294967296",
        "-1",
        "*",
        "Fri, 31 Dec 9999 23:59:59 GMT",
        "Mon, 01 Jan 0001 00:00:00 GMT",
        "199 - \"x\"",
        "\u{e9}",
    ];
    prop_oneof![
        prop::collection::vec(prop::sample::select(words.to_vec()), 0..4)
            .prop_map(|words| words.join(", ")),
        "[ -~]{0,20}",
    ]
}

fn any_headers() -> impl Strategy<Value = HeaderMap> {
    let names = [
        "cache-control",
        "age",
        "date",
        "expires",
        "etag",
        "last-modified",
        "vary",
        "pragma",
        "warning",
        "connection",
        "x",
        "content-length",
        "authorization",
    ];
    let line = (prop::sample::select(names.to_vec()), any_header_value());
    prop::collection::vec(line, 0..6).prop_map(|lines| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.append(HeaderName::from_static(name), value);
            }
        }
        headers
    })
}

proptest! {
    /// No header of a server or a function stops the pool's thread, and no private response is
    /// served.
    #[test]
    fn any_headers_are_survived(
        exchanges in prop::collection::vec((any_headers(), prop::sample::select(vec![200u16, 204, 301, 304, 404, 500]), any_headers(), 0u64..100), 1..8),
        bound in 1u64..10_000,
    ) {
        let (mut cache, mut now) = (HttpCache::new(bound), 0);
        for (request_headers, status, response_headers, later) in exchanges {
            now += later;
            let mut parts = request(Method::GET, &[]);
            parts.headers.extend(request_headers);
            match cache.look_up(&parts, true, time_at(now)) {
                CacheLookup::Bypass => {}
                CacheLookup::Fresh(response) => {
                    let all = response.headers().get_all(CACHE_CONTROL);
                    let private = all.iter().any(|value| value.to_str().is_ok_and(|text| text.to_lowercase().contains("private")));
                    prop_assert!(!private);
                }
                CacheLookup::Fetch(asked) => {
                    let _ = asked.revalidation_headers();
                    let mut head = response(status, &[]);
                    head.headers = response_headers;
                    if let CacheOutcome::Store(keeping) = cache.handle_response(*asked, &head, time_at(now)) {
                        cache.store(*keeping, Bytes::from_static(b"body"), time_at(now));
                    }
                }
            }
            prop_assert!(cache.0.held_bytes() as u64 <= bound);
        }
    }
}
