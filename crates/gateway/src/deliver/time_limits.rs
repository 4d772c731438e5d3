//! Awaiting within the time limits of a request.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Instant;

use nearpath_types::Reason;

use crate::request::{RequestDeadlines, RequestStage, UploadProgress};

/// Awaits `answer` as long as the deadlines allow. Uses one timer, which moves only when it fires
/// early or the stage changes.
pub(super) async fn await_within<F: Future>(
    deadlines: &RequestDeadlines,
    sent_at: Instant,
    progress: Option<&Rc<UploadProgress>>,
    answer: F,
) -> Result<F::Output, Reason> {
    let stage = || {
        progress.map_or(RequestStage::Awaiting(sent_at), |flow| {
            flow.current_stage(sent_at)
        })
    };
    let mut answer = pin!(answer);
    let mut timer = pin!(tokio::time::sleep_until(
        deadlines.next_deadline(stage()).0.into()
    ));
    poll_fn(|cx| {
        // The answer first: one that arrives with the deadline counts.
        if let Poll::Ready(answer) = answer.as_mut().poll(cx) {
            return Poll::Ready(Ok(answer));
        }
        // The end of the upload changes the stage, and another task may send it.
        if let Some(progress) = progress.filter(|progress| !progress.has_ended()) {
            progress.wake_on_change(cx.waker());
        }
        let next = deadlines.next_deadline(stage()).0.into();
        // Moved only to an earlier time. A timer that fires early is cheaper than a reset for
        // each frame.
        if next < timer.deadline() {
            timer.as_mut().reset(next);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if let Some(reason) = deadlines.expired_reason(stage(), Instant::now()) {
                return Poll::Ready(Err(reason));
            }
            timer
                .as_mut()
                .reset(deadlines.next_deadline(stage()).0.into());
        }
        Poll::Pending
    })
    .await
}
