//! Long request bodies of functions with limited places. They hold at most half of the places while
//! they arrive (ADR 73).

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Instant;

use nearpath_types::{PlatformError, SourceNetwork};

use super::buffered_request::is_dialogue;
use super::delivery_errors::{broken_body_error, late_body_error};
use super::time_limits::await_within;
use crate::call::GatewayCall;
use crate::function::{AdmissionGate, AdmissionPermit};
use crate::request::RequestUpload;
use crate::spool::FrameQueue;

/// Admits a request whose body is still arriving while fewer than half of the places are taken.
/// Otherwise reads on, until the body is complete or there is no room for more of it: then, or if
/// no body is arriving, returns `None`, and the request waits like any other.
///
/// # Errors
/// If the caller left, sent an invalid body, or took too long.
pub(crate) async fn admit_or_read_body(
    call: &mut GatewayCall,
) -> Result<Option<AdmissionPermit>, PlatformError> {
    let Some(progress) = call.upload_progress.clone() else {
        return Ok(None);
    };
    let Some(request) = call.request.take() else {
        return Ok(None);
    };
    // The caller of a dialogue waits for the response before it sends the rest.
    if is_dialogue(call, request.body()) || !request.body().is_arriving() {
        call.request = Some(request);
        return Ok(None);
    }
    let caller = call.source;
    if let Some(permit) = call.function.gate.try_enter_below_half(caller) {
        call.request = Some(request);
        return Ok(Some(permit));
    }
    let frames = FrameQueue::new(&call.worker.spool, caller);
    let mut request = request.map(|body| body.with_spool(frames, &progress));
    let reading = read_until_admitted(request.body_mut(), &call.function.gate, caller);
    let outcome = await_within(&call.deadlines, call.admitted_at, Some(&progress), reading).await;
    call.admitted_at = Instant::now(); // the limit for the first byte counts from here
    // The function may have become ready meanwhile.
    call.route = call.function.route();
    match outcome {
        Ok(Ok(permit)) => {
            call.request = Some(request);
            Ok(permit)
        }
        Ok(Err(())) => Err(broken_body_error(call)),
        Err(reason) => Err(late_body_error(call, reason)),
    }
}

async fn read_until_admitted(
    body: &mut RequestUpload,
    gate: &Arc<AdmissionGate>,
    caller: SourceNetwork,
) -> Result<Option<AdmissionPermit>, ()> {
    while poll_fn(|cx| body.poll_spool(cx)).await? {
        // Places come free while the body arrives.
        if let Some(permit) = gate.try_enter_below_half(caller) {
            return Ok(Some(permit));
        }
    }
    Ok(None)
}
