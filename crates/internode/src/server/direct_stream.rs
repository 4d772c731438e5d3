//! Body of a stream of directly callable instances: all of them, again after each change.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use nearpath_types::direct::DirectNode;
use nearpath_wire::Body;
use tokio::sync::watch;
use tokio::time::sleep;

use super::subscribers::SubscriberPermit;
use crate::protocol::encode_direct;

/// Minimum time between two lines: instances that start together come in few lines.
const LINE_INTERVAL: Duration = Duration::from_millis(20);

struct DirectSubscriber {
    nodes: watch::Receiver<Arc<DirectNode>>,
    permit: SubscriberPermit,
}

/// Creates the body of a subscription, which ends with the permit or with the sender of `nodes`.
pub(super) fn direct_body(
    mut nodes: watch::Receiver<Arc<DirectNode>>,
    permit: SubscriberPermit,
) -> Body {
    nodes.mark_changed();
    let subscriber = DirectSubscriber { nodes, permit };
    let lines = stream::unfold(subscriber, |mut subscriber| async {
        let line = subscriber.next_line().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), subscriber))
    });
    Body::boxed(StreamBody::new(lines))
}

impl DirectSubscriber {
    async fn next_line(&mut self) -> Option<Bytes> {
        tokio::select! {
            changed = self.nodes.changed() => changed.ok()?,
            _ = &mut self.permit.ended => return None,
        }
        sleep(LINE_INTERVAL).await;
        let node = self.nodes.borrow_and_update().clone();
        Some(encode_direct(&node).into())
    }
}
