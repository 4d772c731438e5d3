//! What the gateway changes in a request's and a response's head, in place.
//!
//! `EgressHost` goes to the function as the caller sent it (OpenFaaS's proxy does the same for virtual hosting to work), and as
//! `X-Forwarded-Host` when that is absent. `traceparent` and everything else passes untouched.

use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::{EXPECT, HOST, HeaderName, HeaderValue};
use nearpath_path::PathChoice;
use nearpath_types::{duration, policy};
use nearpath_wire::hop_headers;

use crate::call::GatewayCall;
use crate::request::{X_CALL_ID, X_NEARPATH_PATH, X_START_TIME, X_TIMEOUT, seconds_value};

/// How long it took, in decimal seconds.
pub(crate) const X_DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A remaining deadline this near to the policy's own is told as the policy's: no text has to be made.
const DEADLINE_GRACE: Duration = Duration::from_millis(5);

/// Makes a request's head fit for the function.
pub(crate) fn rewrite_request_headers(
    headers: &mut HeaderMap,
    call: &GatewayCall,
    authority: Option<HeaderValue>,
) {
    hop_headers::strip_hop_headers(headers, call.options.wants_upgrade);
    headers.remove(EXPECT); // hyper answers it when the body is first asked for
    let peer = &call.peer;
    let host = headers.get(HOST).cloned().or(authority);
    if !call.options.is_grpc && !headers.contains_key(HOST) {
        headers.insert(
            HOST,
            host.clone().unwrap_or_else(|| call.function.host.clone()),
        );
    }
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers
        .entry(X_FORWARDED_FOR)
        .or_insert_with(|| peer.forwarded_for.clone());
    headers
        .entry(X_FORWARDED_PROTO)
        .or_insert_with(|| peer.proto.clone());
    headers.insert(X_CALL_ID, call.options.call_id.clone());
    headers.insert(X_START_TIME, call.options.start_time.clone());
    set_deadline_header(headers, call);
}

fn set_deadline_header(headers: &mut HeaderMap, call: &GatewayCall) {
    let is_callers = call.deadlines.total_setting() != policy::TOTAL_TIMEOUT;
    if call.options.wants_stream && !is_callers {
        headers.remove(X_TIMEOUT);
        return;
    }
    let left = call
        .deadlines
        .deadline()
        .saturating_duration_since(call.admitted_at);
    let value = match !is_callers && left + DEADLINE_GRACE >= call.route.policy.total_timeout {
        true => call.route.total_timeout_header.clone(),
        false => HeaderValue::from_str(&duration::format_duration(truncate_to_millis(left)))
            .expect("a duration is ASCII"),
    };
    headers.insert(X_TIMEOUT, value);
}

fn truncate_to_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Makes a response's head fit for the caller.
pub(crate) fn rewrite_response_headers(
    headers: &mut HeaderMap,
    call: &GatewayCall,
    is_upgraded: bool,
    now: Instant,
) {
    hop_headers::strip_hop_headers(headers, is_upgraded);
    call.options
        .insert_identity(headers, &call.worker.served_by);
    let took = now.saturating_duration_since(call.record.started_at());
    headers
        .entry(X_DURATION_SECONDS)
        .or_insert_with(|| seconds_value(took));
    if call.options.wants_path {
        headers.insert(X_NEARPATH_PATH, path_header(call.record.path_choice()));
    }
}

/// `shm`, or `http; not_nearer=no_party`.
fn path_header(choice: PathChoice) -> HeaderValue {
    let why = choice
        .obstacle
        .map(|obstacle| format!("; not_nearer={}", obstacle.name()))
        .unwrap_or_default();
    HeaderValue::try_from(format!("{}{why}", choice.path))
        .expect("names of paths and obstacles are ASCII")
}
