//! Admission: a request goes to an instance now, waits, or is refused.
//!
//! [`AdmissionGate`] and [`wait_limits`] decide without tasks and clocks; [`admit_call`] waits.
//! Without a ready instance, the request waits and the function is woken. The snapshot with a
//! ready instance opens the gate.

mod wait_limits;

use std::pin::Pin;
use std::time::Instant;

use futures_util::FutureExt;
use nearpath_types::instance_label::label_instance;
use nearpath_types::{PlatformError, Reason, StartFailure, duration, policy};

use crate::COMPONENT;
use crate::call::GatewayCall;
use crate::deliver::{self, Admission, EndpointSlot};
use crate::function::{
    ActiveRoute, AdmissionGate, AdmissionPermit, GateEntry, GateRefusal, GateWaiter,
};
use crate::request::ListenerZone;
use wait_limits::{MissingPart, WaitDecision, WaitLimits};

/// Announces a request before it takes a place: its prefetches start now.
pub(crate) fn announce_call(call: &GatewayCall) {
    // A prefetch that starts while the request waits is the one that saves the most time.
    if call.route.prefetches {
        call.worker.control.note_call(&call.function.id);
    }
}

/// Wakes a function without instances for a request that does not wait for a place yet.
pub(crate) fn wake_if_cold(call: &GatewayCall) {
    let throttle = &call.function.wake_throttle;
    if call.route.runs_here && call.route.is_cold() && throttle.claim_wake(Instant::now(), false) {
        call.worker.control.wake_function(&call.function.id);
    }
}

/// Admits a request that waits for a place outside of the queue since `waiting_since`; `None`: not
/// yet.
///
/// # Errors
/// `queue_timeout`.
pub(crate) fn try_admit_waiting(
    call: &GatewayCall,
    waiting_since: Instant,
) -> Result<Option<AdmissionPermit>, PlatformError> {
    if let Some(permit) = call.function.gate.try_enter(call.source) {
        return Ok(Some(permit));
    }
    let (policy, deadline) = (&call.route.policy, call.deadlines.deadline());
    let (limits, now) = (
        WaitLimits::new(waiting_since, policy, deadline),
        Instant::now(),
    );
    match limits.decide(now, MissingPart::Place) {
        WaitDecision::WaitUntil(_) => Ok(None),
        WaitDecision::Refuse(reason) => Err(timeout_error(call, reason, &limits, now)),
    }
}

/// Admits the request, now or when its turn comes.
///
/// # Errors
/// `overload`, `queue_timeout`, `cold_timeout`, `start_failed`, or `no_function` if the function is
/// removed meanwhile.
pub(crate) async fn admit_call(call: &mut GatewayCall) -> Result<Admission, PlatformError> {
    if may_go_elsewhere(call) {
        if let Some(permit) = call.function.gate.try_enter(call.source) {
            return Ok(Admission::Here(permit));
        }
        if let Some(slot) = slot_elsewhere(call) {
            return Ok(Admission::Elsewhere(slot));
        }
    }
    match call.function.gate.enter_gate(call.source) {
        GateEntry::Admitted(permit) => Ok(Admission::Here(permit)),
        // On the heap: few requests wait, and every request's future would be as large otherwise.
        GateEntry::Queued(waiter, first) => Box::pin(wait_for_permit(call, waiter, first)).await,
        GateEntry::Full => Err(overload_error(call)),
        GateEntry::Closed => Err(removed_error(call)),
    }
}

/// Admits a request again, before all others: its instance is gone.
///
/// # Errors
/// As [`admit_call`], without `overload`.
pub(crate) async fn readmit_call(
    call: &mut GatewayCall,
    permit: Option<AdmissionPermit>,
) -> Result<Admission, PlatformError> {
    // A withdrawn instance has given its permits back already, so there may be none to return.
    let queued = match permit {
        Some(permit) => AdmissionGate::requeue_first(permit, call.source),
        None => call.function.gate.requeue_without_permit(call.source),
    };
    match queued {
        Ok(waiter) => wait_for_permit(call, waiter, false).await,
        Err(refusal) => Err(refusal_error(call, refusal)),
    }
}

async fn wait_for_permit(
    call: &mut GatewayCall,
    mut waiter: GateWaiter,
    first: bool,
) -> Result<Admission, PlatformError> {
    let limits = WaitLimits::new(
        Instant::now(),
        &call.route.policy,
        call.deadlines.deadline(),
    );
    let mut first = first;
    loop {
        // The route is read anew each round: a snapshot may have made a waiting function ready or
        // cold.
        let now = Instant::now();
        let route = call.function.route();
        if let Some(error) = known_failure(&route, call) {
            return Err(error);
        }
        let cold = route.is_cold();
        let missing = match (cold, route.runs_here) {
            (false, _) => MissingPart::Place,
            (true, true) => MissingPart::Instance,
            // A node that is connected would be among the endpoints, also while the function sleeps.
            (true, false) => MissingPart::Node,
        };
        let until = match limits.decide(now, missing) {
            WaitDecision::WaitUntil(until) => until,
            WaitDecision::Refuse(reason) => return Err(timeout_error(call, reason, &limits, now)),
        };
        // Waiting requests of all threads share one throttle, so the node hears about a function
        // once a second.
        if cold
            && route.runs_here
            && call
                .function
                .wake_throttle
                .claim_wake(now, std::mem::take(&mut first))
        {
            call.worker.control.wake_function(&call.function.id);
        }
        let in_time = tokio::time::timeout_at(until.into(), Pin::new(&mut waiter)).await;
        let admitted = in_time.ok().or_else(|| {
            // Its source may have room now: no other calls any more.
            call.function.gate.recheck_waiting();
            Pin::new(&mut waiter).now_or_never()
        });
        if let Some(admitted) = admitted {
            // The limit for the first byte counts from here: time in the queue is not the
            // instance's.
            call.admitted_at = Instant::now();
            let waited = limits.waited_for(call.admitted_at);
            call.record.add_queue_wait(waited);
            // The snapshot that opened the gate brought the instances to choose from.
            call.route = call.function.route();
            let admitted = admitted.map_err(|refusal| refusal_error(call, refusal));
            return admitted.map(Admission::Here);
        }
        // Another node may have free places by now. Its caller leaves the queue here.
        if may_go_elsewhere(call)
            && let Some(slot) = slot_elsewhere(call)
        {
            call.admitted_at = Instant::now();
            call.record
                .add_queue_wait(limits.waited_for(call.admitted_at));
            return Ok(Admission::Elsewhere(slot));
        }
    }
}

/// Returns whether other nodes may take a request that would wait here. A call from another node goes no
/// further, and a function that does not run here has no places at this gate.
fn may_go_elsewhere(call: &GatewayCall) -> bool {
    call.route.runs_here && !call.route.remotes.is_empty() && call.peer.zone != ListenerZone::Node
}

fn slot_elsewhere(call: &GatewayCall) -> Option<Box<EndpointSlot>> {
    deliver::pick_slot_elsewhere(&call.function.route(), call.worker.next_random()).map(Box::new)
}

fn refusal_error(call: &GatewayCall, refusal: GateRefusal) -> PlatformError {
    match refusal {
        GateRefusal::Closed => removed_error(call),
        GateRefusal::Displaced => overload_error(call),
    }
}

fn overload_error(call: &GatewayCall) -> PlatformError {
    let policy = &call.route.policy;
    let message = match (call.route.is_cold(), policy.max_inflight) {
        (true, _) => {
            format!(
                "{} has no ready instance and {} requests wait for one already",
                call.function.name, policy.queue
            )
        }
        _ if call.function.gate.has_free_place() => format!(
            "{}: this client has its share of the places while others call, and {} requests wait already",
            call.function.name, policy.queue
        ),
        (_, limit) => format!(
            "{}: every one of {} instances has {} requests, and {} more wait already",
            call.function.name,
            call.route.ready.len(),
            limit.unwrap_or(0),
            policy.queue
        ),
    };
    PlatformError::new(COMPONENT, Reason::Overload, message).governed_by(policy::QUEUE)
}

/// Returns the error for a function whose starts are known to fail: waiting would not help.
fn known_failure(route: &ActiveRoute, call: &GatewayCall) -> Option<PlatformError> {
    let name = &call.function.name;
    let failure = route.start_failure.as_ref()?;
    let interval = failure.retry_after?;
    let message = format!(
        "no instance of {name} is ready: {}",
        explain_failure(failure, call)
    );
    Some(PlatformError::new(COMPONENT, Reason::StartFailed, message).retry_after(interval))
}

/// Returns the failure for a caller, who may be anyone: what happened, and where the administrator
/// finds the rest.
fn explain_failure(failure: &StartFailure, call: &GatewayCall) -> String {
    let (name, node) = (&call.function.name, call.worker.recorder.node.as_ref());
    let instance = failure
        .instance
        .map(|id| format!(" (instance {})", label_instance(node, id)))
        .unwrap_or_default();
    format!(
        "{}{instance}; `nearpath describe {name}` shows details",
        failure.cause
    )
}

/// Returns whether the function runs on other nodes alone, and none of them is connected.
fn is_without_node(route: &ActiveRoute) -> bool {
    route.is_cold() && !route.runs_here
}

fn removed_error(call: &GatewayCall) -> PlatformError {
    PlatformError::new(
        COMPONENT,
        Reason::NoFunction,
        format!(
            "{} was removed while the request waited",
            call.function.name
        ),
    )
}

fn timeout_error(
    call: &GatewayCall,
    reason: Reason,
    limits: &WaitLimits,
    now: Instant,
) -> PlatformError {
    let name = &call.function.name;
    // Whole milliseconds, because callers read this text.
    let waited = duration::format_duration(std::time::Duration::from_millis(
        limits.waited_for(now).as_millis() as u64,
    ));
    let (description, setting) = match reason {
        Reason::ColdTimeout if is_without_node(&call.function.route()) => (
            format!("{name} runs on other nodes, and none of them was connected within {waited}"),
            policy::NODES,
        ),
        Reason::ColdTimeout => (
            format!("no instance of {name} became ready within {waited}"),
            policy::COLD_TIMEOUT,
        ),
        _ if call.function.gate.has_free_place() => (
            format!(
                "this client has its share of the places of {name} while others call, and none came free within {waited}"
            ),
            policy::QUEUE_TIMEOUT,
        ),
        _ => (
            format!("no instance of {name} was free within {waited}"),
            policy::QUEUE_TIMEOUT,
        ),
    };
    // Callers learn why no instance started, not only that none did.
    let start_failure = call
        .function
        .route()
        .start_failure
        .as_ref()
        .map(|failure| format!(": {}", explain_failure(failure, call)))
        .unwrap_or_default();
    let setting = if limits.is_deadline_passed(now) {
        call.deadlines.deadline_setting()
    } else {
        setting
    };
    PlatformError::new(COMPONENT, reason, format!("{description}{start_failure}"))
        .governed_by(setting)
}
