//! Whether a request may go to an instance now, has to wait, or is refused.
//!
//! [`Gate`] and [`wait_limits`] decide, without tasks and clocks; [`enter`] waits. While no instance is ready, the request is held and
//! the function woken; the snapshot that brings an instance opens the gate.

mod wait_limits;

use std::pin::Pin;
use std::time::Instant;

use nearpath_types::{PlatformError, Reason, duration, policy};

use crate::COMPONENT;
use crate::call::Call;
use crate::function::{Closed, Entry, Gate, Permit, Waiter};
use wait_limits::{Next, Patience};

/// Lets the request in, now or when its turn comes.
///
/// # Errors
/// `overload`, `queue_timeout`, `cold_timeout`, or `no_function` when it is removed meanwhile.
pub(crate) async fn enter(call: &mut Call) -> Result<Permit, PlatformError> {
    if call.route.foresees {
        call.lane.control.called(&call.function.id);
    }
    match call.function.gate.enter() {
        Entry::In(permit) => Ok(permit),
        Entry::Wait(waiter, first) => Box::pin(wait(call, waiter, first)).await,
        Entry::Full => Err(overload(call)),
        Entry::Closed => Err(gone(call)),
    }
}

/// Back to the first place: the request was let in, but the instance it was meant for is gone.
///
/// # Errors
/// As [`enter`], but for `overload`.
pub(crate) async fn enter_again(call: &mut Call, permit: Option<Permit>) -> Result<Permit, PlatformError> {
    let place = match permit {
        Some(permit) => Gate::step_back(permit),
        None => call.function.gate.rejoin(),
    };
    match place {
        Ok(waiter) => wait(call, waiter, false).await,
        Err(Closed) => Err(gone(call)),
    }
}

async fn wait(call: &mut Call, mut waiter: Waiter, first: bool) -> Result<Permit, PlatformError> {
    let patience = Patience::new(Instant::now(), &call.route.policy, call.clock.deadline());
    let mut first = first;
    loop {
        let now = Instant::now();
        let cold = call.function.route().is_cold();
        let until = match patience.judge(now, cold) {
            Next::Until(until) => until,
            Next::Refuse(reason) => return Err(refusal(call, reason, &patience, now)),
        };
        if cold && call.function.bell.ring(now, std::mem::take(&mut first)) {
            call.lane.control.wake(&call.function.id);
        }
        if let Ok(called) = tokio::time::timeout_at(until.into(), Pin::new(&mut waiter)).await {
            call.admitted = Instant::now();
            call.record.queue_wait += patience.waited(call.admitted);
            call.route = call.function.route();
            return called.map_err(|Closed| gone(call));
        }
    }
}

fn overload(call: &Call) -> PlatformError {
    let policy = &call.route.policy;
    let message = match (call.route.is_cold(), policy.max_inflight) {
        (true, _) => {
            format!("{} has no ready instance and {} requests wait for one already", call.function.name, policy.queue)
        }
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

fn gone(call: &Call) -> PlatformError {
    PlatformError::new(
        COMPONENT,
        Reason::NoFunction,
        format!("{} was removed while the request waited", call.function.name),
    )
}

fn refusal(call: &Call, reason: Reason, patience: &Patience, now: Instant) -> PlatformError {
    let name = &call.function.name;
    let waited = duration::format(std::time::Duration::from_millis(patience.waited(now).as_millis() as u64));
    let (what, setting) = match reason {
        Reason::ColdTimeout => (format!("no instance of {name} became ready within {waited}"), policy::COLD_TIMEOUT),
        _ => (format!("no instance of {name} was free within {waited}"), policy::QUEUE_TIMEOUT),
    };
    let trouble = call.function.route().trouble.as_ref().map(|trouble| format!(": {trouble}")).unwrap_or_default();
    let setting = if patience.own_deadline_passed(now) { call.clock.total_setting() } else { setting };
    PlatformError::new(COMPONENT, reason, format!("{what}{trouble}")).governed_by(setting)
}
