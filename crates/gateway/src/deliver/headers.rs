//! Changes of the gateway in the heads of requests and responses, in place.
//!
//! The function gets `Host` as the caller sent it (as with OpenFaaS's proxy, for virtual
//! hosting), and a copy as `X-Forwarded-Host` if that is absent. `traceparent` and all other
//! fields pass unchanged.

use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::{HOST, HeaderName, HeaderValue};
use http::uri::Authority;
use nearpath_path::PathChoice;
use nearpath_types::{NodeName, duration, policy};
use nearpath_wire::hop::headers::{
    CALLER, append_forwarded_for, join_cookies, keep_one_origin, strip_hop_headers,
    strip_platform_headers,
};
use nearpath_wire::hop::request_head::take_host;

use crate::call::GatewayCall;
use crate::request::{
    ListenerZone, X_CALL_ID, X_NEARPATH_PATH, X_START_TIME, X_TIMEOUT, seconds_value,
};

/// Duration of the request in decimal seconds.
pub(crate) const X_DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A remaining time this close to the policy's limit is sent as the policy's limit, whose text
/// exists already.
const DEADLINE_GRACE: Duration = Duration::from_millis(5);

/// Rewrites a request's head for the function.
pub(crate) fn rewrite_request_headers(
    headers: &mut HeaderMap,
    call: &GatewayCall,
    authority: Option<&Authority>,
) {
    strip_hop_headers(headers, call.options.wants_upgrade);
    strip_platform_headers(headers);
    if let Some(caller) = &call.caller {
        headers.insert(CALLER, caller.host.clone());
    }
    join_cookies(headers);
    set_host(headers, call, authority);
    let peer = &call.peer;
    if peer.zone != ListenerZone::Node {
        append_forwarded_for(headers, &peer.forwarded_for); // the other node has done this
    }
    // A proxy in front of the gateway knows the client's protocol better, so its field is kept.
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert_with(|| peer.proto.clone());
    // Overwritten, not added: the access log and the function must see the same id.
    headers.insert(X_CALL_ID, call.options.call_id.clone());
    headers.insert(X_START_TIME, call.options.start_time.clone());
    set_deadline_header(headers, call);
}

fn set_host(headers: &mut HeaderMap, call: &GatewayCall, authority: Option<&Authority>) {
    let host = take_host(headers, authority);
    // To a gRPC function the authority goes as `:authority`.
    if !call.options.is_grpc {
        let host = host.clone().unwrap_or_else(|| call.function.host.clone());
        headers.insert(HOST, host);
    }
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
}

fn set_deadline_header(headers: &mut HeaderMap, call: &GatewayCall) {
    let is_callers = call.deadlines.deadline_setting() != policy::TOTAL_TIMEOUT;
    // An event stream outlives the total timeout, so a function that honored it would end too
    // early.
    if call.options.wants_stream && !is_callers {
        headers.remove(X_TIMEOUT);
        return;
    }
    let left = call
        .deadlines
        .deadline()
        .saturating_duration_since(call.admitted_at);
    let value = match !is_callers && left + DEADLINE_GRACE >= call.route.policy.total_timeout {
        // Cloning a `HeaderValue` counts a reference; formatting a duration allocates.
        true => call.route.total_timeout_header.clone(),
        false => HeaderValue::from_str(&duration::format_duration(truncate_to_millis(left)))
            .expect("a duration is ASCII"),
    };
    headers.insert(X_TIMEOUT, value);
}

fn truncate_to_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Rewrites a response's head for the caller.
pub(crate) fn rewrite_response_headers(
    headers: &mut HeaderMap,
    call: &GatewayCall,
    is_upgraded: bool,
    now: Instant,
) {
    strip_hop_headers(headers, is_upgraded);
    keep_one_origin(headers);
    call.options
        .insert_identity(headers, &call.worker.served_by);
    let took = now.saturating_duration_since(call.record.started_at());
    // of-watchdog sets this field too. Its measurement is closer to the function, and is kept.
    headers
        .entry(X_DURATION_SECONDS)
        .or_insert_with(|| seconds_value(took));
    if call.options.wants_path {
        let inner = headers.remove(X_NEARPATH_PATH);
        let inner = inner.as_ref().map(HeaderValue::as_bytes);
        let report = path_report(call.record.path_choice(), call.record.node(), inner);
        let report = HeaderValue::try_from(report).expect("names are ASCII");
        headers.insert(X_NEARPATH_PATH, report);
    }
}

/// Returns the report of a call's path: `shm`, or for example
/// `quic; obstacle=other_node; node=b; then=loopback`. `inner` is the report of the other node.
pub(crate) fn path_report(
    choice: PathChoice,
    node: Option<&NodeName>,
    inner: Option<&[u8]>,
) -> String {
    let Some(node) = node else {
        return choice.to_string();
    };
    let inner = inner
        .and_then(|inner| str::from_utf8(inner).ok())
        .filter(|inner| inner.is_ascii());
    let path = inner.and_then(|inner| inner.split(';').next());
    let then = path
        .map(|path| format!("; then={path}"))
        .unwrap_or_default();
    format!("{choice}; node={node}{then}")
}
