//! Bytes of a connection on the gateway's fast path, from a caller and from another node: no byte is
//! lost, and an accepted request has one meaning.
#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use nearpath_gateway::fuzz::{ParseOutcome, PlainRequest, take_node_request, take_plain_request};

/// Names in the request's head, as a reader would find them who knows nothing but lines and colons.
fn names(head: &[u8]) -> Vec<String> {
    let lines = head.split(|byte| *byte == b'\n').skip(1);
    let names = lines.filter_map(|line| line.split(|byte| *byte == b':').next());
    names
        .map(|name| String::from_utf8_lossy(name).trim().to_ascii_lowercase())
        .collect()
}

/// Fields that only another node may set; a caller's ones are dropped.
const NODE_FIELDS: [&str; 2] = ["x-nearpath-function", "x-nearpath-caller"];

fn check_caller(whole: &PlainRequest) {
    has_one_meaning(whole);
    let request = whole.to_request().expect("what is plain is a request");
    assert!(whole.path().starts_with("/function/"));
    assert_eq!(request.headers().len(), whole.header_fields().count());
    assert!(
        NODE_FIELDS
            .iter()
            .all(|name| !request.headers().contains_key(*name))
    );
    assert_eq!(
        (whole.called_function(), whole.calling_function()),
        (None, None)
    );
}

fn check_node(whole: &PlainRequest) {
    has_one_meaning(whole);
    let request = whole.to_request().expect("what is plain is a request");
    let headers = request.headers();
    assert_eq!(headers.get_all(NODE_FIELDS[0]).iter().count(), 1);
    // The pipeline checks the caller that it finds there.
    let caller = headers.get(NODE_FIELDS[1]).map(|value| value.as_bytes());
    assert_eq!(caller, whole.calling_function());
    assert!(headers.get_all(NODE_FIELDS[1]).iter().count() <= 1);
}

fn has_one_meaning(whole: &PlainRequest) {
    let (body, path) = (whole.body(), whole.path());
    let head = &whole.bytes[..whole.bytes.len() - body.len()];
    assert!(
        head.ends_with(b"\n\r\n") || head.ends_with(b"\n\n"),
        "{head:?}"
    );
    let count = |name: &str| names(head).iter().filter(|other| *other == name).count();
    assert_eq!(count("host"), 1);
    assert!(count("content-length") <= 1);
    for never in ["transfer-encoding", "upgrade", "expect", "te", "trailer"] {
        assert_eq!(count(never), 0, "{never}");
    }
    let value = |name: &str| {
        whole
            .header_fields()
            .find(|(other, _)| *other == name)
            .map(|(_, value)| value)
    };
    let announced = value("content-length").map_or(Some(0), |length| {
        std::str::from_utf8(length).ok()?.parse().ok()
    });
    assert_eq!((announced, value("connection")), (Some(body.len()), None));
    let request = whole.to_request().expect("what is plain is a request");
    assert_eq!(request.uri().path(), path);
}

/// Takes requests until one is not plain. No byte is lost.
fn take_all(bytes: &[u8], take: fn(&mut BytesMut) -> ParseOutcome, check: fn(&PlainRequest)) {
    let mut buffer = BytesMut::from(bytes);
    let mut taken = Vec::new();
    while let ParseOutcome::Plain(whole) = take(&mut buffer) {
        check(&whole);
        taken.push(whole.bytes);
    }
    taken.push(Bytes::copy_from_slice(&buffer));
    assert!(taken.concat().eq_ignore_ascii_case(bytes));
}

fuzz_target!(|bytes: &[u8]| {
    take_all(bytes, take_plain_request, check_caller);
    take_all(bytes, take_node_request, check_node);
});
