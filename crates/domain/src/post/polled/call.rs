//! Calls that were sent: futures of their outcomes, one by one or several.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use super::shared::Shared;
use crate::book;
use crate::post::words::{CallError, Reply};

/// A call that was sent.
#[derive(Debug)]
#[must_use = "a call whose future is dropped is cancelled"]
pub struct Call {
    shared: Rc<Shared>,
    call: Option<book::Call>,
}

impl Call {
    pub(super) fn new(shared: &Rc<Shared>, call: book::Call) -> Self {
        Self { shared: Rc::clone(shared), call: Some(call) }
    }

    /// Its answer is read as it comes ([`Reply::rest`]), also where the party has answers put together. Say so at once.
    pub fn as_it_comes(self) -> Self {
        self.call.into_iter().for_each(|call| self.shared.core.borrow_mut().as_it_comes(call));
        self
    }
}

impl Future for Call {
    type Output = Result<Reply, CallError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(call) = self.call else { return Poll::Ready(Err(CallError::Died)) };
        let outcome = self.shared.core.borrow_mut().poll(call, Some(cx.waker()));
        if outcome.is_ready() {
            self.call = None;
        }
        outcome
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(call) = self.call {
            self.shared.core.borrow_mut().leave(call);
            self.shared.rearm();
        }
    }
}

/// The outcomes of all calls, in their order. One that fails leaves the others alone; dropping the future cancels those that
/// are open.
pub async fn all(calls: impl IntoIterator<Item = Call>) -> Vec<Result<Reply, CallError>> {
    let mut outcomes = Vec::new();
    for call in calls.into_iter().collect::<Vec<_>>() {
        outcomes.push(call.await); // they run side by side already: each was sent when it was made
    }
    outcomes
}

/// The first outcome of several calls, and where its call stood. The call is taken out, the others stay. Nothing when there
/// is no call.
pub async fn any(calls: &mut Vec<Call>) -> Option<(usize, Result<Reply, CallError>)> {
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
