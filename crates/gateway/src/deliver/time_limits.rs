//! Waits within the limits of a request.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use nearpath_types::Reason;

use crate::request::{Clock, Flow, Stage};

/// Awaits `answer` for as long as the clock allows. One timer, which moves only when it fires early or the stage changes.
pub(super) async fn within<F: Future>(
    clock: &Clock,
    sent: Instant,
    flow: Option<&Rc<Flow>>,
    answer: F,
) -> Result<F::Output, Reason> {
    let stage = || flow.map_or(Stage::Awaiting(sent), |flow| flow.stage(sent));
    let mut answer = pin!(answer);
    let mut timer = pin!(tokio::time::sleep_until(clock.next(stage()).0.into()));
    poll_fn(|cx| {
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(Ok(answer));
        }
        if let Some(flow) = flow.filter(|flow| !flow.has_ended()) {
            flow.watch(cx.waker());
        }
        let next = clock.next(stage()).0.into();
        if next < timer.deadline() {
            timer.as_mut().reset(next);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if let Some(reason) = clock.expired(stage(), Instant::now()) {
                return Poll::Ready(Err(reason));
            }
            timer.as_mut().reset(clock.next(stage()).0.into());
        }
        Poll::Pending
    })
    .await
}
