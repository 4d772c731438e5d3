//! Heads of requests as messages in shared memory have them.

use nearpath_domain::trace::{TRACEPARENT, TraceContext};

/// Returns the fields of a request: method, path, and headers.
pub(super) fn call_fields(head: &http::request::Parts) -> Vec<(&str, &[u8])> {
    let mut fields: Vec<(&str, &[u8])> = Vec::with_capacity(head.headers.len() + 2);
    fields.push((":method", head.method.as_str().as_bytes()));
    fields.push((
        ":path",
        head.uri
            .path_and_query()
            .map_or("/", |path| path.as_str())
            .as_bytes(),
    ));
    fields.extend(
        head.headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes())),
    );
    fields
}

/// Returns trace and span ids for the envelope. The `traceparent` field is forwarded as well.
pub(super) fn trace_ids(head: &http::request::Parts) -> ([u8; 16], [u8; 8]) {
    let trace = head
        .headers
        .get(TRACEPARENT)
        .and_then(|text| TraceContext::parse_traceparent(text.as_bytes()));
    trace.map_or_else(Default::default, |trace| (trace.id, trace.span))
}
