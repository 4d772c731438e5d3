//! Bytes from one end to the other, and the end of it.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt, StreamExt};
use tokio::sync::oneshot;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::traffic_meter::Meter;
use nearpath_p2p::websocket::Web;

/// How long a close may take.
const CLOSING: Duration = Duration::from_secs(5);

type Ear = SplitStream<Web>;
type Mouth = SplitSink<Web, Message>;

/// Why a relay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// Its sender has closed: nothing is missing.
    Closed,
    /// Its sender is gone without a word.
    Gone,
    /// Its receiver is gone without a word.
    Lost,
    /// Its receiver does not read for too long.
    Deaf,
    /// One of the ends has come anew.
    Displaced,
    /// Nothing has gone over the relay for too long.
    Idle,
}

/// Passes frames on, both ways, until one end closes or breaks, or has come anew. `first` came from `a` before `b` was here.
pub(super) async fn join(
    a: Web,
    b: Web,
    first: Option<Message>,
    meter: &Meter,
    displaced: oneshot::Receiver<()>,
) -> Parting {
    let ((mut a_mouth, mut a_ear), (mut b_mouth, mut b_ear)) = (a.split(), b.split());
    let (why, from_a) = tokio::select! {
        why = pump(&mut a_ear, &mut b_mouth, first, meter) => (why, true),
        why = pump(&mut b_ear, &mut a_mouth, None, meter) => (why, false),
        Ok(()) = displaced => (Why::Displaced, true),
    };
    tracing::debug!(?why, from_a, "a relay has ended");
    let ((speaker, speakers), (listener, listeners)) =
        if from_a { ((a_mouth, a_ear), (b_mouth, b_ear)) } else { ((b_mouth, b_ear), (a_mouth, a_ear)) };
    Parting { why, speaker, listener, ears: [speakers, listeners] }
}

/// A relay that has ended, and whose ends were not told.
pub(super) struct Parting {
    why: Why,
    speaker: Mouth,
    listener: Mouth,
    ears: [Ear; 2],
}

impl Parting {
    /// Tells them.
    pub(super) async fn part(self) {
        let Self { why, mut speaker, mut listener, ears: [mut one, mut other] } = self;
        let all = async {
            match why {
                Why::Closed => say(&mut listener, CloseCode::Normal, "").await,
                Why::Gone => say(&mut listener, CloseCode::Restart, "the other end of the relay is gone").await,
                Why::Lost => say(&mut speaker, CloseCode::Restart, "the other end of the relay is gone").await,
                Why::Deaf => say(&mut speaker, CloseCode::Policy, "the other end of the relay does not read").await,
                Why::Displaced => both(&mut speaker, &mut listener, CloseCode::Restart, "an end has come anew").await,
                Why::Idle => {
                    let why = "nothing went over the relay for too long";
                    both(&mut speaker, &mut listener, CloseCode::Policy, why).await;
                }
            }
            tokio::join!(hear_out(&mut one), hear_out(&mut other));
        };
        let _ = tokio::time::timeout(CLOSING, all).await; // whoever does not close by then is cut off
    }
}

async fn both(one: &mut Mouth, other: &mut Mouth, code: CloseCode, why: &'static str) {
    tokio::join!(say(one, code, why), say(other, code, why));
}

/// Tells an end that has no other why there is nothing for it.
pub(super) async fn farewell(web: Web, code: CloseCode, why: &'static str) {
    let (mut mouth, mut ear) = web.split();
    let all = async {
        say(&mut mouth, code, why).await;
        hear_out(&mut ear).await;
    };
    let _ = tokio::time::timeout(CLOSING, all).await; // as above
}

async fn say(to: &mut Mouth, code: CloseCode, why: &'static str) {
    let _ = to.send(Message::Close(Some(CloseFrame { code, reason: Cow::from(why).into_owned().into() }))).await; // it may be gone
}

/// Until the other end has closed, too.
async fn hear_out(from: &mut Ear) {
    while let Some(Ok(_)) = from.next().await {}
}

/// Whether an end lives, the kernel asks (see `door`): one that has stopped reading for a while answers no ping.
async fn pump(from: &mut Ear, to: &mut Mouth, first: Option<Message>, meter: &Meter) -> Why {
    if let Some(first) = first
        && let Err(why) = pass(to, first, meter).await
    {
        return why;
    }
    let look = meter.idle() / 4;
    loop {
        match tokio::time::timeout(look, from.next()).await {
            Err(_) if meter.is_idle() => return Why::Idle,
            Err(_) => {}
            // Something between, which is about to end, may close with another code: then frames may be missing.
            Ok(Some(Ok(Message::Close(Some(frame))))) if frame.code != CloseCode::Normal => return Why::Gone,
            Ok(Some(Ok(Message::Close(_)))) => return Why::Closed,
            Ok(None | Some(Err(_))) => return Why::Gone,
            Ok(Some(Ok(message))) => {
                if matches!(message, Message::Binary(_) | Message::Text(_))
                    && let Err(why) = pass(to, message, meter).await
                {
                    return why;
                }
            }
        }
    }
}

async fn pass(to: &mut Mouth, message: Message, meter: &Meter) -> Result<(), Why> {
    let wait = meter.pass(message.len());
    write(to, message, meter).await?;
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    Ok(())
}

async fn write(to: &mut Mouth, message: Message, meter: &Meter) -> Result<(), Why> {
    match tokio::time::timeout(meter.idle(), to.send(message)).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Why::Lost),
        Err(_) => Err(Why::Deaf),
    }
}
