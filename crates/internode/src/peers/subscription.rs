//! Reader of another node's state stream.

use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use nearpath_types::NodeName;
use tokio::net::lookup_host;
use tokio::sync::mpsc;

use super::abort_on_drop::AbortOnDrop;
use super::dialer::NodeDialer;
use super::http_connection::{HttpConnection, PeerTarget, RequestError};
use crate::protocol::{FrameFault, LineBuffer, LineTooLong, STATE_PATH, StateFrame};

/// Batches of frames that wait for the peer's task. The stream is not read meanwhile.
const MAX_WAITING_BATCHES: usize = 4;

/// Event of a subscription.
pub(super) enum SubscriptionEvent {
    /// The node at this address answered; its frames follow.
    Subscribed(PeerTarget),
    /// Frames that arrived together, in order.
    Frames(Vec<StateFrame>),
    /// Bytes that are no frames. The last event.
    Fault(Arc<str>),
    /// The stream has failed or ended. The last event.
    Lost(Arc<str>),
}

/// Running subscription, ended when it is dropped.
pub(super) struct Subscription {
    events: mpsc::Receiver<SubscriptionEvent>,
    _reader: AbortOnDrop,
}

/// Node, and where it is looked for.
pub(super) struct PeerAddress {
    pub(super) node: NodeName,
    /// Host or IP address, and port.
    pub(super) text: String,
    /// Attempts before, so that each tries the next IP address of the host.
    pub(super) attempts: usize,
    pub(super) dialer: Arc<dyn NodeDialer>,
}

/// End of a stream.
#[derive(Debug, thiserror::Error)]
enum StreamEnd {
    #[error("cannot resolve {address:?}: {cause}")]
    Resolve { address: String, cause: String },
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("its stream broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("its stream ended")]
    Ended,
    #[error(transparent)]
    Frame(#[from] FrameFault),
    #[error(transparent)]
    Line(#[from] LineTooLong),
}

impl Subscription {
    /// Resolves the address, dials the node and subscribes.
    pub(super) fn start(address: PeerAddress) -> Self {
        let (sender, events) = mpsc::channel(MAX_WAITING_BATCHES);
        let reader = AbortOnDrop::spawn(async move {
            let Err(end) = read_stream(address, &sender).await;
            let cause: Arc<str> = end.to_string().into();
            let event = match end {
                StreamEnd::Frame(_) | StreamEnd::Line(_) => SubscriptionEvent::Fault(cause),
                _ => SubscriptionEvent::Lost(cause),
            };
            // An error means that the subscription was dropped.
            let _ = sender.send(event).await;
        });
        Self {
            events,
            _reader: reader,
        }
    }

    /// Returns the next event; `None`: the last one was returned. Cancel safe.
    pub(super) async fn next_event(&mut self) -> Option<SubscriptionEvent> {
        self.events.recv().await
    }
}

impl PeerAddress {
    async fn resolve(self) -> Result<PeerTarget, StreamEnd> {
        let failure = |cause: String| StreamEnd::Resolve {
            address: self.text.clone(),
            cause,
        };
        let addrs = lookup_host(&self.text).await;
        let addrs: Vec<_> = addrs.map_err(|error| failure(error.to_string()))?.collect();
        let at = self.attempts % addrs.len().max(1);
        let no_addr = || failure("the name has no address".to_owned());
        let addr = *addrs.get(at).ok_or_else(no_addr)?;
        Ok(PeerTarget {
            node: self.node,
            addr,
            dialer: self.dialer,
        })
    }
}

async fn read_stream(
    address: PeerAddress,
    events: &mpsc::Sender<SubscriptionEvent>,
) -> Result<std::convert::Infallible, StreamEnd> {
    let target = address.resolve().await?;
    let mut connection = HttpConnection::open(&target).await?;
    let mut body = connection.get(STATE_PATH).await?.into_body();
    let _ = events.send(SubscriptionEvent::Subscribed(target)).await;
    let mut lines = LineBuffer::default();
    loop {
        read_piece(&mut body, &mut lines).await?;
        // Frames before a fault are good, and must be applied before it is reported.
        let (frames, fault) = take_frames(&mut lines);
        if !frames.is_empty() {
            let _ = events.send(SubscriptionEvent::Frames(frames)).await;
        }
        fault?;
    }
}

async fn read_piece(body: &mut Incoming, lines: &mut LineBuffer) -> Result<(), StreamEnd> {
    let frame = body.frame().await.ok_or(StreamEnd::Ended)??;
    if let Some(bytes) = frame.data_ref() {
        lines.push(bytes);
    }
    Ok(())
}

fn take_frames(lines: &mut LineBuffer) -> (Vec<StateFrame>, Result<(), StreamEnd>) {
    let mut frames = Vec::new();
    loop {
        let frame = match lines.take_line() {
            Ok(None) => return (frames, Ok(())),
            Ok(Some(line)) => StateFrame::parse(&line).map_err(StreamEnd::from),
            Err(error) => Err(error.into()),
        };
        match frame {
            Ok(frame) => frames.push(frame),
            Err(fault) => return (frames, Err(fault)),
        }
    }
}
