//! A request's head, as the gateway and the watchdog read it: `METHOD TARGET`, then lines of `name:
//! value`.
#![no_main]

use std::ffi::OsStr;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Uri, request};
use libfuzzer_sys::fuzz_target;
use nearpath_gateway::fuzz::{RequestOptions, function_uri, parse_caller_timeout};
use nearpath_gateway::route::{PathTarget, parse_path};
use nearpath_watchdog::fuzz::{cgi_variables, path};

const HOP: [&str; 6] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
    "upgrade",
    "proxy-authorization",
];

fn request(head: &str) -> Option<Request<()>> {
    let mut lines = head.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        .body(())
        .ok()?;
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        if let (Ok(name), Ok(value)) = (
            name.parse::<HeaderName>(),
            HeaderValue::from_str(value.trim()),
        ) {
            request.headers_mut().append(name, value);
        }
    }
    Some(request)
}

/// The function's part of the path is all that is left, and the query is untouched.
fn goes_on_to_the_function(uri: &Uri) {
    let Ok(PathTarget::Function {
        path_offset: rest, ..
    }) = parse_path(uri.path())
    else {
        return;
    };
    let rests_path = Some(&uri.path()[rest..])
        .filter(|path| !path.is_empty())
        .unwrap_or("/");
    for full in [false, true] {
        let sent = function_uri(uri, rest, full);
        assert_eq!(
            (sent.path(), sent.query()),
            (rests_path, uri.query()),
            "{uri}"
        );
        assert_eq!(sent.authority().is_some(), full);
    }
}

/// Nothing of this hop goes on, framing and host do, and a second hop finds nothing more to take.
fn is_stripped(before: &HeaderMap, strip: fn(&mut HeaderMap, bool)) {
    let mut after = before.clone();
    strip(&mut after, false);
    assert!(
        HOP.iter().all(|name| !after.contains_key(*name)),
        "{after:?}"
    );
    assert!(
        after.get("te").is_none_or(|te| te == "trailers"),
        "{after:?}"
    );
    for kept in ["host", "content-length"] {
        assert_eq!(after.get(kept), before.get(kept));
    }
    let once = after.clone();
    strip(&mut after, false);
    assert_eq!(after, once);
}

/// No header poses as a part of the request, or becomes a variable that programs obey.
fn are_variables(head: &request::Parts) {
    let variables = cgi_variables(head, None);
    assert_eq!(variables[OsStr::new("Http_Method")], head.method.as_str());
    assert_eq!(variables[OsStr::new("Http_Path")], head.uri.path());
    for (name, value) in &variables {
        let name = name.to_str().expect("made of a header's name");
        assert!(
            name.starts_with("Http_") && !name.contains(['=', '\0', '-']),
            "{name:?}"
        );
        assert!(!value.as_encoded_bytes().contains(&0));
    }
}

fuzz_target!(|head: &str| {
    let Some(request) = request(head) else { return };
    goes_on_to_the_function(request.uri());
    is_stripped(
        request.headers(),
        nearpath_wire::hop::headers::strip_hop_headers,
    );
    is_stripped(
        request.headers(),
        nearpath_watchdog::fuzz::strip_hop_headers,
    );
    let _ = (
        RequestOptions::from_request(&request),
        parse_caller_timeout(&request),
    );
    assert!(path(request.uri().path()).is_none_or(|path| !path.contains('\0')));
    are_variables(&request.into_parts().0);
});
