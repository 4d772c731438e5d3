//! What the gateway changes in a request's and a response's head, in place.
//!
//! `Host` goes to the function as the caller sent it (OpenFaaS's proxy does the same for virtual hosting to work), and as
//! `X-Forwarded-Host` when that is absent. `traceparent` and everything else passes untouched.

use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::{EXPECT, HOST, HeaderName, HeaderValue};
use nearpath_path::PathChoice;
use nearpath_types::{duration, policy};
use nearpath_wire::hop;

use crate::call::Call;
use crate::request::{X_CALL_ID, X_NEARPATH_PATH, X_START_TIME, X_TIMEOUT, seconds};

/// How long it took, in decimal seconds.
pub(crate) const X_DURATION_SECONDS: HeaderName = HeaderName::from_static("x-duration-seconds");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// A remaining deadline this near to the policy's own is told as the policy's: no text has to be made.
const NEAR: Duration = Duration::from_millis(5);

/// Makes a request's head fit for the function.
pub(crate) fn to_function(headers: &mut HeaderMap, call: &Call, authority: Option<HeaderValue>) {
    hop::strip(headers, call.asked.upgrade);
    headers.remove(EXPECT); // hyper answers it when the body is first asked for
    let peer = &call.peer;
    let host = headers.get(HOST).cloned().or(authority);
    if !call.asked.grpc && !headers.contains_key(HOST) {
        headers.insert(HOST, host.clone().unwrap_or_else(|| call.function.host.clone()));
    }
    if let Some(host) = host {
        headers.entry(X_FORWARDED_HOST).or_insert(host);
    }
    headers.entry(X_FORWARDED_FOR).or_insert_with(|| peer.forwarded_for.clone());
    headers.entry(X_FORWARDED_PROTO).or_insert_with(|| peer.proto.clone());
    headers.insert(X_CALL_ID, call.asked.call_id.clone());
    headers.insert(X_START_TIME, call.asked.start_time.clone());
    tell_deadline(headers, call);
}

fn tell_deadline(headers: &mut HeaderMap, call: &Call) {
    let own = call.clock.total_setting() != policy::TOTAL_TIMEOUT;
    if call.asked.stream && !own {
        headers.remove(X_TIMEOUT);
        return;
    }
    let left = call.clock.deadline().saturating_duration_since(call.admitted);
    let value = match !own && left + NEAR >= call.route.policy.total_timeout {
        true => call.route.total.clone(),
        false => HeaderValue::from_str(&duration::format(whole_millis(left))).expect("a duration is ASCII"),
    };
    headers.insert(X_TIMEOUT, value);
}

fn whole_millis(time: Duration) -> Duration {
    Duration::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

/// Makes a response's head fit for the caller.
pub(crate) fn to_caller(headers: &mut HeaderMap, call: &Call, upgraded: bool, now: Instant) {
    hop::strip(headers, upgraded);
    call.asked.identify(headers, &call.lane.served_by);
    let took = now.saturating_duration_since(call.record.started());
    headers.entry(X_DURATION_SECONDS).or_insert_with(|| seconds(took));
    if call.asked.path {
        headers.insert(X_NEARPATH_PATH, way(call.record.way()));
    }
}

/// `shm`, or `http; not_nearer=no_party`.
fn way(choice: PathChoice) -> HeaderValue {
    let why = choice.obstacle.map(|obstacle| format!("; not_nearer={}", obstacle.name())).unwrap_or_default();
    HeaderValue::try_from(format!("{}{why}", choice.path)).expect("names of paths and obstacles are ASCII")
}
