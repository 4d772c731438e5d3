//! Body of a state stream, which makes each line when the connection has room for it.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use nearpath_wire::Body;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::cursor::{CursorStep, StateCursor};
use super::subscribers::SubscriberPermit;
use crate::local_state::LocalState;

/// One subscription.
struct Subscriber {
    states: watch::Receiver<Arc<LocalState>>,
    permit: SubscriberPermit,
    cursor: StateCursor,
}

/// Creates the body of a subscription, which ends with the permit or with the sender of `states`.
pub(super) fn state_body(
    states: watch::Receiver<Arc<LocalState>>,
    permit: SubscriberPermit,
) -> Body {
    let cursor = StateCursor::new(Instant::now().into_std());
    let subscriber = Subscriber {
        states,
        permit,
        cursor,
    };
    let lines = stream::unfold(subscriber, |mut subscriber| async {
        let line = subscriber.next_line().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), subscriber))
    });
    Body::boxed(StreamBody::new(lines))
}

impl Subscriber {
    /// Returns the next line once there is one; `None`: the subscription ends.
    async fn next_line(&mut self) -> Option<Bytes> {
        loop {
            let state = self.states.borrow_and_update().clone();
            let until = match self.cursor.advance(&state, Instant::now().into_std()) {
                CursorStep::Send(line) => return Some(line),
                CursorStep::Wait(until) => until,
            };
            tokio::select! {
                changed = self.states.changed() => changed.ok()?,
                _ = &mut self.permit.ended => return None,
                () = sleep_until(until.into()) => {}
            }
        }
    }
}
