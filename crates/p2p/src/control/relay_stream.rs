//! One end of a session's relay, as a [`crate::migrate::Relay`].

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::{Sink, SinkExt, Stream, StreamExt};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use super::dial::dial;
use super::{DialError, Settings};
use crate::message::Pass;
use crate::migrate::{Piece, Relay};
use crate::websocket::{self, Web};

/// See the module. It ends without an error when the other end, or the relay, has closed it properly.
pub struct RelayStream {
    web: Web,
    /// The other end has closed: what was sent before has all come, and how the connection ends does not matter.
    closed: bool,
    over: bool,
}

impl RelayStream {
    /// Opens this end of the relay. The other end may come later; what is written waits for it.
    ///
    /// # Errors
    /// When the rendezvous is not reached, or does not take the pass.
    pub async fn open(settings: &Settings, pass: &Pass) -> Result<Self, DialError> {
        let (web, _) = dial(settings, websocket::RELAY, &pass.0, websocket::for_relays()).await?;
        Ok(Self { web, closed: false, over: false })
    }
}

impl Stream for RelayStream {
    type Item = io::Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Piece>>> {
        while !self.over {
            let piece = match ready!(self.web.poll_next_unpin(cx)) {
                Some(Ok(Message::Binary(bytes))) => Ok(Piece::Bytes(bytes)),
                Some(Ok(Message::Text(text))) => Ok(Piece::Word(text.as_str().to_owned())),
                Some(Ok(Message::Close(frame))) => match broken(frame) {
                    Some(error) => {
                        self.over = true;
                        Err(error)
                    }
                    None => {
                        self.closed = true; // reading on sends the answer
                        continue;
                    }
                },
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Err(Error::ConnectionClosed)) | None => break,
                Some(Err(_)) if self.closed => break,
                Some(Err(error)) => {
                    self.over = true;
                    Err(to_io(error))
                }
            };
            return Poll::Ready(Some(piece));
        }
        self.over = true;
        Poll::Ready(None)
    }
}

impl Relay for RelayStream {}

/// A close that was not meant by the other end. [`is_final`] tells what it is good for.
fn broken(frame: Option<CloseFrame>) -> Option<io::Error> {
    let frame = frame.filter(|frame| frame.code != CloseCode::Normal)?;
    let text = format!("the relay ended: {}", frame.reason.as_str());
    let comes_again = matches!(frame.code, CloseCode::Restart | CloseCode::Again | CloseCode::Away);
    let kind = if comes_again { io::ErrorKind::ConnectionReset } else { io::ErrorKind::ConnectionAborted };
    Some(io::Error::new(kind, text))
}

/// Whether another connection would end as this one did.
pub(super) fn is_final(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::InvalidData)
}

impl Sink<Piece> for RelayStream {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.web.poll_ready_unpin(cx).map_err(to_io)
    }

    fn start_send(mut self: Pin<&mut Self>, piece: Piece) -> io::Result<()> {
        let message = match piece {
            Piece::Bytes(bytes) => Message::Binary(bytes),
            Piece::Word(text) => Message::text(text),
        };
        self.web.start_send_unpin(message).map_err(to_io)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.web.poll_flush_unpin(cx).map_err(to_io)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.web.poll_close_unpin(cx).map_err(to_io)
    }
}

fn to_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        gone @ (Error::ConnectionClosed
        | Error::AlreadyClosed
        | Error::Protocol(ProtocolError::ResetWithoutClosingHandshake | ProtocolError::SendAfterClosing)) => {
            io::Error::new(io::ErrorKind::ConnectionReset, gone.to_string())
        }
        other => io::Error::new(io::ErrorKind::ConnectionAborted, other.to_string()),
    }
}

impl fmt::Debug for RelayStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayStream").field("over", &self.over).finish_non_exhaustive()
    }
}
