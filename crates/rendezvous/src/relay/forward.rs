//! Bytes from one end to the other, and the end of it.

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

/// How long a close may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

type RelayReader = SplitStream<WebSocket>;
type RelayWriter = SplitSink<WebSocket, Message>;

/// Why a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RelayEndReason {
    /// Its sender has closed: nothing is missing.
    Closed,
    /// Its sender is gone without a word.
    SenderLost,
    /// Its receiver is gone without a word.
    ReceiverLost,
    /// Its receiver does not read for too long.
    ReceiverStalled,
    /// One of the ends has come anew.
    Displaced,
    /// Nothing has gone over the relay for too long.
    Idle,
}

/// Passes frames on, both ways, until one end closes or breaks, or has come anew. `first` came from `a` before `b` was here.
pub(super) async fn join_ends(
    a: WebSocket,
    b: WebSocket,
    first: Option<Message>,
    meter: &TrafficMeter,
    displaced: oneshot::Receiver<()>,
) -> EndedRelay {
    let ((mut a_mouth, mut a_ear), (mut b_mouth, mut b_ear)) = (a.split(), b.split());
    let (reason, from_a) = tokio::select! {
        why = forward_frames(&mut a_ear, &mut b_mouth, first, meter) => (why, true),
        why = forward_frames(&mut b_ear, &mut a_mouth, None, meter) => (why, false),
        Ok(()) = displaced => (RelayEndReason::Displaced, true),
    };
    tracing::debug!(?reason, from_a, "a relay has ended");
    let ((speaker, speakers), (listener, listeners)) = if from_a {
        ((a_mouth, a_ear), (b_mouth, b_ear))
    } else {
        ((b_mouth, b_ear), (a_mouth, a_ear))
    };
    EndedRelay {
        reason,
        sender: speaker,
        receiver: listener,
        readers: [speakers, listeners],
    }
}

/// A relay that has ended, and whose ends were not told.
pub(super) struct EndedRelay {
    reason: RelayEndReason,
    sender: RelayWriter,
    receiver: RelayWriter,
    readers: [RelayReader; 2],
}

impl EndedRelay {
    /// Tells them.
    pub(super) async fn notify_ends(self) {
        let Self {
            reason: why,
            sender: mut speaker,
            receiver: mut listener,
            readers: [mut one, mut other],
        } = self;
        let all = async {
            match why {
                RelayEndReason::Closed => send_close(&mut listener, CloseCode::Normal, "").await,
                RelayEndReason::SenderLost => {
                    send_close(
                        &mut listener,
                        CloseCode::Restart,
                        "the other end of the relay is gone",
                    )
                    .await
                }
                RelayEndReason::ReceiverLost => {
                    send_close(
                        &mut speaker,
                        CloseCode::Restart,
                        "the other end of the relay is gone",
                    )
                    .await
                }
                RelayEndReason::ReceiverStalled => {
                    send_close(
                        &mut speaker,
                        CloseCode::Policy,
                        "the other end of the relay does not read",
                    )
                    .await
                }
                RelayEndReason::Displaced => {
                    close_both(
                        &mut speaker,
                        &mut listener,
                        CloseCode::Restart,
                        "an end has come anew",
                    )
                    .await
                }
                RelayEndReason::Idle => {
                    let reason = "nothing went over the relay for too long";
                    close_both(&mut speaker, &mut listener, CloseCode::Policy, reason).await;
                }
            }
            tokio::join!(drain_until_closed(&mut one), drain_until_closed(&mut other));
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, all).await; // whoever does not close by then is cut off
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

/// Tells an end that has no other why there is nothing for it.
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
        .await; // it may be gone
}

/// Until the other end has closed, too.
async fn drain_until_closed(from: &mut RelayReader) {
    while let Some(Ok(_)) = from.next().await {}
}

/// Whether an end lives, the kernel asks (see `door`): one that has stopped reading for a while answers no ping.
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
    let check_interval = meter.idle_timeout() / 4;
    loop {
        match tokio::time::timeout(check_interval, from.next()).await {
            Err(_) if meter.is_idle() => return RelayEndReason::Idle,
            Err(_) => {}
            // Something between, which is about to end, may close with another code: then frames may be missing.
            Ok(Some(Ok(Message::Close(Some(frame))))) if frame.code != CloseCode::Normal => {
                return RelayEndReason::SenderLost;
            }
            Ok(Some(Ok(Message::Close(_)))) => return RelayEndReason::Closed,
            Ok(None | Some(Err(_))) => return RelayEndReason::SenderLost,
            Ok(Some(Ok(message))) => {
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
    match tokio::time::timeout(meter.idle_timeout(), to.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(RelayEndReason::ReceiverLost),
        Err(_) => Err(RelayEndReason::ReceiverStalled),
    }
}
