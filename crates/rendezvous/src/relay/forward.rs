//! Forwards frames between both ends of a relay, and closes them.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::traffic_meter::TrafficMeter;
use nearpath_p2p::websocket::WebSocket;

/// Time for a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type RelayReader = SplitStream<WebSocket>;
type RelayWriter = SplitSink<WebSocket, Message>;

/// Reason for the end of a relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayEndReason {
    /// Sender has closed: nothing is missing.
    Closed,
    /// Sender disconnected without a close.
    SenderLost,
    /// Receiver disconnected without a close.
    ReceiverLost,
    /// Receiver does not read for too long.
    ReceiverStalled,
    /// An end has reconnected.
    Displaced,
    /// No traffic for too long.
    Idle,
}

/// Forwards frames both ways until one end closes, breaks or reconnects. `first` came from `a`
/// before `b` connected.
pub(super) async fn join_ends(
    a: WebSocket,
    b: WebSocket,
    first: Option<Message>,
    meter: &TrafficMeter,
    displaced: oneshot::Receiver<()>,
) -> EndedRelay {
    let ((mut a_writer, mut a_reader), (mut b_writer, mut b_reader)) = (a.split(), b.split());
    // The first end decides: later frames of the other direction have no receiver.
    let (reason, from_a) = tokio::select! {
        reason = forward_frames(&mut a_reader, &mut b_writer, first, meter) => (reason, true),
        reason = forward_frames(&mut b_reader, &mut a_writer, None, meter) => (reason, false),
        Ok(()) = displaced => (RelayEndReason::Displaced, true),
    };
    tracing::debug!(?reason, from_a, "relay: ended");
    let ((sender, sender_reader), (receiver, receiver_reader)) = if from_a {
        ((a_writer, a_reader), (b_writer, b_reader))
    } else {
        ((b_writer, b_reader), (a_writer, a_reader))
    };
    EndedRelay {
        reason,
        sender,
        receiver,
        readers: [sender_reader, receiver_reader],
    }
}

/// Relay that has ended, before its ends are notified.
pub(super) struct EndedRelay {
    reason: RelayEndReason,
    sender: RelayWriter,
    receiver: RelayWriter,
    readers: [RelayReader; 2],
}

impl EndedRelay {
    /// Notifies both ends.
    pub(super) async fn notify_ends(self) {
        let Self {
            reason,
            mut sender,
            mut receiver,
            readers: [mut one, mut other],
        } = self;
        let all = async {
            // Codes of `contract/rendezvous.md`, "The relay": 1012 asks for another try, 1008
            // forbids it.
            match reason {
                RelayEndReason::Closed => send_close(&mut receiver, CloseCode::Normal, "").await,
                RelayEndReason::SenderLost => {
                    send_close(
                        &mut receiver,
                        CloseCode::Restart,
                        "the other end has disconnected",
                    )
                    .await
                }
                RelayEndReason::ReceiverLost => {
                    send_close(
                        &mut sender,
                        CloseCode::Restart,
                        "the other end has disconnected",
                    )
                    .await
                }
                RelayEndReason::ReceiverStalled => {
                    send_close(
                        &mut sender,
                        CloseCode::Policy,
                        "the other end does not read",
                    )
                    .await
                }
                RelayEndReason::Displaced => {
                    close_both(
                        &mut sender,
                        &mut receiver,
                        CloseCode::Restart,
                        "an end has reconnected",
                    )
                    .await
                }
                RelayEndReason::Idle => {
                    let reason = "no traffic for too long";
                    close_both(&mut sender, &mut receiver, CloseCode::Policy, reason).await;
                }
            }
            tokio::join!(drain_until_closed(&mut one), drain_until_closed(&mut other));
        };
        // An end that does not close in time is cut.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, all).await;
    }
}

async fn close_both(
    one: &mut RelayWriter,
    other: &mut RelayWriter,
    code: CloseCode,
    reason: &'static str,
) {
    tokio::join!(
        send_close(one, code, reason),
        send_close(other, code, reason)
    );
}

/// Closes an end without a peer, with a reason.
pub(super) async fn close_with_reason(socket: WebSocket, code: CloseCode, reason: &'static str) {
    let (mut writer, mut reader) = socket.split();
    let all = async {
        send_close(&mut writer, code, reason).await;
        drain_until_closed(&mut reader).await;
    };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, all).await; // as above
}

async fn send_close(to: &mut RelayWriter, code: CloseCode, reason: &'static str) {
    let _ = to
        .send(Message::Close(Some(CloseFrame {
            code,
            reason: Cow::from(reason).into_owned().into(),
        })))
        .await; // the end may be gone
}

/// Reads until the other end has closed, too.
async fn drain_until_closed(from: &mut RelayReader) {
    // Reading on lets the close frames pass; a socket closed with unread data sends RST, which
    // could destroy them.
    while let Some(Ok(_)) = from.next().await {}
}

/// Forwards one direction.
///
/// The kernel detects dead ends (TCP keepalive): an end that pauses reading answers no ping.
async fn forward_frames(
    from: &mut RelayReader,
    to: &mut RelayWriter,
    first: Option<Message>,
    meter: &TrafficMeter,
) -> RelayEndReason {
    if let Some(first) = first
        && let Err(reason) = forward_message(to, first, meter).await
    {
        return reason;
    }
    // Four checks per idle timeout: precise enough, and rare.
    let check_interval = meter.idle_timeout() / 4;
    loop {
        match tokio::time::timeout(check_interval, from.next()).await {
            // The meter counts both directions: a one-way stream is not idle.
            Err(_) if meter.is_idle() => return RelayEndReason::Idle,
            Err(_) => {}
            // A proxy that shuts down closes with another code: frames may be missing.
            Ok(Some(Ok(Message::Close(Some(frame))))) if frame.code != CloseCode::Normal => {
                return RelayEndReason::SenderLost;
            }
            Ok(Some(Ok(Message::Close(_)))) => return RelayEndReason::Closed,
            Ok(None | Some(Err(_))) => return RelayEndReason::SenderLost,
            Ok(Some(Ok(message))) => {
                // Pings are answered by the library, and concern one end only.
                if matches!(message, Message::Binary(_) | Message::Text(_))
                    && let Err(reason) = forward_message(to, message, meter).await
                {
                    return reason;
                }
            }
        }
    }
}

async fn forward_message(
    to: &mut RelayWriter,
    message: Message,
    meter: &TrafficMeter,
) -> Result<(), RelayEndReason> {
    // Charged before it is written: the wait then delays the next read, so TCP slows the sender.
    let wait = meter.record(message.len());
    send_with_timeout(to, message, meter).await?;
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

async fn send_with_timeout(
    to: &mut RelayWriter,
    message: Message,
    meter: &TrafficMeter,
) -> Result<(), RelayEndReason> {
    // A receiver may pause for as long as a relay may be idle.
    match tokio::time::timeout(meter.idle_timeout(), to.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(RelayEndReason::ReceiverLost),
        Err(_) => Err(RelayEndReason::ReceiverStalled),
    }
}
