//! Sent calls: futures of their outcomes.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::shared::SharedEndpoint;
use crate::endpoint::types::{CallError, CallReply};
use crate::peer_table;

/// A sent call.
#[derive(Debug)]
#[must_use = "a call whose future is dropped is cancelled"]
pub struct CallFuture {
    shared: Rc<SharedEndpoint>,
    call: Option<peer_table::CallNumber>,
}

impl CallFuture {
    pub(super) fn new(shared: &Rc<SharedEndpoint>, call: peer_table::CallNumber) -> Self {
        Self {
            shared: Rc::clone(shared),
            call: Some(call),
        }
    }

    /// Streams the response ([`CallReply::reader`]), also when responses are assembled by default.
    /// Call it at once.
    pub fn stream_response(self) -> Self {
        self.call
            .into_iter()
            .for_each(|call| self.shared.core.borrow_mut().stream_response(call));
        self
    }
}

impl Future for CallFuture {
    type Output = Result<CallReply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = self.call else {
            return Poll::Ready(Err(CallError::PeerDied));
        };
        let outcome = self
            .shared
            .core
            .borrow_mut()
            .poll_outcome(call, Some(cx.waker()));
        if outcome.is_ready() {
            // Settled: dropping the future must not cancel it.
            self.call = None;
        }
        outcome
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.shared.core.borrow_mut().abandon_call(call);
            self.shared.wake_driver_if_due();
        }
    }
}

/// Waits for all calls, in order. A failed one does not affect the others; dropping the future
/// cancels open calls.
pub async fn wait_all(
    calls: impl IntoIterator<Item = CallFuture>,
) -> Vec<Result<CallReply, CallError>> {
    let mut outcomes = Vec::new();
    for call in calls.into_iter().collect::<Vec<_>>() {
        outcomes.push(call.await); // they run concurrently: each was sent when it was made
    }
    outcomes
}

/// Waits for the first of several calls. Returns its position, from which it is removed, and its
/// outcome. None without calls.
pub async fn wait_any(
    calls: &mut Vec<CallFuture>,
) -> Option<(usize, Result<CallReply, CallError>)> {
    poll_fn(|cx| {
        if calls.is_empty() {
            return Poll::Ready(None);
        }
        for at in 0..calls.len() {
            if let Poll::Ready(outcome) = Pin::new(&mut calls[at]).poll(cx) {
                drop(calls.remove(at));
                return Poll::Ready(Some((at, outcome)));
            }
        }
        Poll::Pending
    })
    .await
}
