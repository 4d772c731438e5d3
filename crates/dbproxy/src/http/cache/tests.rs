//! The rules of RFC 9111, one by one, and any headers at all.

use proptest::prelude::*;

use super::*;

const START: Duration = Duration::from_secs(1_700_000_000);

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + START + Duration::from_secs(seconds)
}

type Lines<'a> = &'a [(&'static str, &'a str)];

fn headers(lines: Lines<'_>) -> HeaderMap {
    let line =
        |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
    lines.iter().map(line).collect()
}

fn request(method: Method, lines: Lines<'_>) -> Parts {
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = "/a?b".parse().unwrap();
    *request.headers_mut() = headers(lines);
    request.headers_mut().insert(HOST, HeaderValue::from_static("h"));
    request.into_parts().0
}

fn response(status: u16, lines: Lines<'_>) -> response::Parts {
    let mut response = Response::new(());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    *response.headers_mut() = headers(lines);
    response.into_parts().0
}

/// What a request finds.
fn look(cache: &mut Cache, asks: Lines<'_>, seconds: u64) -> Look {
    cache.look(&request(Method::GET, asks), true, at(seconds))
}

/// A request that the server answers so; whether it was asked at all, and its answer kept.
fn visit(cache: &mut Cache, asks: Lines<'_>, says: Lines<'_>, body: &'static str) -> bool {
    let Look::Ask(asked) = look(cache, asks, 0) else { return false };
    match cache.heard(*asked, &response(200, says), at(0)) {
        Heard::Keep(keeping) => {
            cache.keep(*keeping, Bytes::from_static(body.as_bytes()), at(0));
            true
        }
        _ => false,
    }
}

fn fresh(look: Look) -> Option<Response<Bytes>> {
    match look {
        Look::Fresh(response) => Some(response),
        _ => None,
    }
}

#[test]
fn what_is_fresh_is_given_with_its_age() {
    let mut cache = Cache::new(1 << 20);
    assert!(visit(&mut cache, &[], &[("cache-control", "max-age=60"), ("link", "a"), ("link", "b")], "body"));
    let given = fresh(look(&mut cache, &[], 30)).expect("it is fresh");
    assert_eq!((given.body().as_ref(), &given.headers()[AGE]), (&b"body"[..], &HeaderValue::from_static("30")));
    assert_eq!(given.headers().get_all("link").iter().count(), 2, "lines of one name are all given");
    let Look::Fresh(head) = cache.look(&request(Method::HEAD, &[]), true, at(30)) else { panic!("HEAD is answered") };
    assert!(head.body().is_empty() && head.headers()[CONTENT_LENGTH] == "4");
    assert!(fresh(look(&mut cache, &[], 60)).is_none(), "its time is over");
    assert!(fresh(look(&mut cache, &[("cache-control", "no-cache")], 1)).is_none(), "the client wants it checked");
}

#[test]
fn what_is_not_to_be_kept_is_not() {
    let never: [Lines<'_>; 12] = [
        &[("cache-control", "no-store")],
        &[("cache-control", "max-age=60, No-Store")],
        &[("cache-control", "private, max-age=60")],
        &[("cache-control", "Private=\"x\", max-age=60")],
        &[("cache-control", "max-age=60"), ("set-cookie", "a=b")],
        &[("cache-control", "public, max-age=60"), ("set-cookie", "a=b")],
        &[("cache-control", "max-age=60"), ("vary", "accept, *")],
        &[("cache-control", "max-age=60"), ("age", "99999999999999999999")],
        &[("cache-control", "max-age=60"), ("age", "18446744073709551615")],
        &[("cache-control", "max-age=0")],
        &[("date", "Tue, 14 Nov 2023 22:13:20 GMT"), ("expires", "0")],
        &[],
    ];
    for says in never {
        let mut cache = Cache::new(1 << 20);
        assert!(!visit(&mut cache, &[], says, "x") && fresh(look(&mut cache, &[], 0)).is_none(), "{says:?}");
    }
    let mut cache = Cache::new(1 << 20);
    assert!(!visit(&mut cache, &[("cache-control", "no-store")], &[("cache-control", "max-age=60")], "x"));
}

#[test]
fn what_was_made_for_one_is_not_given_to_another() {
    for personal in [("authorization", "Bearer a"), ("cookie", "a=b")] {
        let mut cache = Cache::new(1 << 20);
        assert!(!visit(&mut cache, &[personal], &[("cache-control", "max-age=60")], "mine"));
        assert!(visit(&mut cache, &[], &[("cache-control", "max-age=60")], "anybody's"));
        assert!(fresh(look(&mut cache, &[personal], 1)).is_none(), "who says who he is may be told something else");
        assert!(visit(&mut cache, &[personal], &[("cache-control", "public, max-age=60")], "all"));
        assert_eq!(fresh(look(&mut cache, &[personal], 1)).unwrap().body(), "all");
    }
}

#[test]
fn what_it_varies_with_has_to_be_the_same() {
    let mut cache = Cache::new(1 << 20);
    let says: Lines<'_> = &[("cache-control", "max-age=60"), ("vary", "Accept-Language")];
    for language in ["de", "en"] {
        let body = if language == "de" { "gut" } else { "good" };
        assert!(visit(&mut cache, &[("accept-language", language)], says, body));
    }
    assert_eq!(fresh(look(&mut cache, &[("accept-language", "de")], 1)).unwrap().body(), "gut");
    assert_eq!(fresh(look(&mut cache, &[("accept-language", "en")], 1)).unwrap().body(), "good");
    assert!(fresh(look(&mut cache, &[], 1)).is_none());
}

#[test]
fn what_is_stale_is_confirmed_or_replaced() {
    let mut cache = Cache::new(1 << 20);
    let says: Lines<'_> = &[("cache-control", "max-age=5"), ("etag", "\"1\""), ("content-type", "text/plain")];
    assert!(visit(&mut cache, &[], says, "body"));
    let Look::Ask(asked) = look(&mut cache, &[], 10) else { panic!("it is stale") };
    assert_eq!(asked.conditions(), [(IF_NONE_MATCH, HeaderValue::from_static("\"1\""))]);
    let same =
        response(304, &[("etag", "\"1\""), ("cache-control", "max-age=50"), ("content-length", "0"), ("x-new", "1")]);
    let Heard::Same(given) = cache.heard(*asked, &same, at(10)) else { panic!("it is good") };
    assert_eq!(
        (given.status(), given.body().as_ref(), &given.headers()["x-new"]),
        (StatusCode::OK, &b"body"[..], &HeaderValue::from_static("1"))
    );
    assert!(!given.headers().contains_key(CONTENT_LENGTH), "the length is that of the body that is kept");
    assert_eq!(fresh(look(&mut cache, &[], 40)).unwrap().headers()[AGE], "30", "it is young again");
    let Look::Ask(asked) = look(&mut cache, &[], 100) else { panic!("it is stale") };
    assert!(matches!(cache.heard(*asked, &response(304, &[("etag", "\"2\"")]), at(100)), Heard::Unasked));
    let Look::Ask(asked) = look(&mut cache, &[], 100) else { panic!("it is stale") };
    let Heard::Keep(new) = cache.heard(*asked, &response(200, says), at(100)) else { panic!("it is new") };
    cache.keep(*new, Bytes::from_static(b"new"), at(100));
    assert_eq!(fresh(look(&mut cache, &[], 101)).unwrap().body(), "new");
}

#[test]
fn a_write_ends_what_was_kept_and_what_is_on_its_way() {
    for method in [Method::POST, Method::PUT, Method::DELETE, Method::PATCH] {
        let mut cache = Cache::new(1 << 20);
        let says: Lines<'_> = &[("cache-control", "max-age=60")];
        assert!(visit(&mut cache, &[], says, "old"));
        let write = request(method, &[]);
        assert!(matches!(cache.look(&write, false, at(1)), Look::Pass));
        let Look::Ask(asked) = look(&mut cache, &[], 1) else { panic!("it was dropped") };
        let Heard::Keep(keeping) = cache.heard(*asked, &response(200, says), at(1)) else { panic!() };
        cache.wrote(&write);
        cache.keep(*keeping, Bytes::from_static(b"perhaps from before"), at(1));
        assert!(fresh(look(&mut cache, &[], 1)).is_none());
    }
}

#[test]
fn requests_with_conditions_of_their_own_pass_by() {
    let mut cache = Cache::new(1 << 20);
    assert!(visit(&mut cache, &[], &[("cache-control", "max-age=60"), ("etag", "\"1\"")], "body"));
    for own in
        [("range", "bytes=0-1"), ("if-none-match", "\"1\""), ("if-modified-since", "x"), ("expect", "100-continue")]
    {
        assert!(matches!(look(&mut cache, &[own], 1), Look::Pass), "{own:?}");
    }
    assert!(matches!(cache.look(&request(Method::GET, &[]), false, at(1)), Look::Pass), "it has a body");
    let mut twice = request(Method::GET, &[]);
    twice.headers.append(HOST, HeaderValue::from_static("other"));
    assert!(matches!(cache.look(&twice, true, at(1)), Look::Pass), "whose is it?");
}

#[test]
fn a_body_of_another_length_is_not_kept() {
    let mut cache = Cache::new(1 << 20);
    assert!(visit(&mut cache, &[], &[("cache-control", "max-age=60"), ("content-length", "5")], "four"));
    assert!(fresh(look(&mut cache, &[], 1)).is_none());
}

/// Values such as servers and attackers send.
fn a_value() -> impl Strategy<Value = String> {
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
        prop::collection::vec(prop::sample::select(words.to_vec()), 0..4).prop_map(|words| words.join(", ")),
        "[ -~]{0,20}",
    ]
}

fn some_headers() -> impl Strategy<Value = HeaderMap> {
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
    let line = (prop::sample::select(names.to_vec()), a_value());
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
    /// Nothing that a server or a function says stops the pool's thread, and nothing private is given.
    #[test]
    fn any_headers_are_survived(
        exchanges in prop::collection::vec((some_headers(), prop::sample::select(vec![200u16, 204, 301, 304, 404, 500]), some_headers(), 0u64..100), 1..8),
        bound in 1u64..10_000,
    ) {
        let (mut cache, mut now) = (Cache::new(bound), 0);
        for (asks, status, says, later) in exchanges {
            now += later;
            let mut parts = request(Method::GET, &[]);
            parts.headers.extend(asks);
            match cache.look(&parts, true, at(now)) {
                Look::Pass => {}
                Look::Fresh(response) => {
                    let all = response.headers().get_all(CACHE_CONTROL);
                    let private = all.iter().any(|value| value.to_str().is_ok_and(|text| text.to_lowercase().contains("private")));
                    prop_assert!(!private);
                }
                Look::Ask(asked) => {
                    let _ = asked.conditions();
                    let mut head = response(status, &[]);
                    head.headers = says;
                    if let Heard::Keep(keeping) = cache.heard(*asked, &head, at(now)) {
                        cache.keep(*keeping, Bytes::from_static(b"body"), at(now));
                    }
                }
            }
            prop_assert!(cache.0.held() as u64 <= bound);
        }
    }
}
